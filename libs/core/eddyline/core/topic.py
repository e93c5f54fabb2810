"""What a topic is: name rule, kind, class, configuration, and its state as readers see it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from eddyline.core.errors import InvalidName
from eddyline.core.record import NAME_PATTERN

IDEMPOTENCY_WINDOW_MS_DEFAULT: Final = 120_000
IDEMPOTENCY_WINDOW_MS_MAX: Final = 86_400_000


class Kind(IntEnum):
    """What a topic is. The numbers are on the wire; on disk the names."""

    LOG = 1
    KV = 2


class Durability(IntEnum):
    """When an append is acknowledged. The numbers are on the wire; on disk the names."""

    DISK = 1
    FSYNC = 2


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """A topic's settings; every field has its default."""

    durability: Durability = Durability.DISK
    idempotency_window_ms: int = IDEMPOTENCY_WINDOW_MS_DEFAULT


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic at one moment. `epoch` is its id; `source` is empty where none writes it."""

    name: str
    epoch: int
    kind: Kind
    config: TopicConfig
    head_seq: int
    earliest_seq: int
    source: str
    create_ts_ms: int


def check_name(name: str, what: str) -> None:
    """Refuse a name that breaks the rule: a letter or digit, then up to 254 letters, digits, or `. _ : -`.

    Raises:
        InvalidName: with `what` (topic, source, writer) as the field.
    """
    if not NAME_PATTERN.fullmatch(name):
        shown = name if len(name) <= 300 else name[:300] + "…"
        raise InvalidName(
            f"{what} name {shown!r} is not a letter or digit followed by at most 254 letters, digits or . _ : -",
            field=what,
            name=shown,
        )
