"""What a source is: its definition, and its state as the store keeps it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

LEASE_MS_DEFAULT: Final = 5_000
LEASE_MS_MIN: Final = 100
LEASE_MS_MAX: Final = 60_000


@dataclass(frozen=True, slots=True)
class SourceDefinition:
    """One KV bucket to one topic. The source's name is its writer id."""

    name: str
    topic: str
    bucket: str


@dataclass(frozen=True, slots=True)
class SourceReport:
    """What a holder says of its source at each renewal. `state` is a name of the contract's `SourceStatus`."""

    state: str = ""
    reason: str = ""
    last_revision: int = 0
    lag: int = 0


@dataclass(frozen=True, slots=True)
class SourceInfo:
    """A source at one moment. `reported_ms` = time since the last report, -1 = never since the store started."""

    definition: SourceDefinition
    position: bytes
    fence: int
    holder: str
    lease_remaining_ms: int
    report: SourceReport
    reported_ms: int
    head_seq: int


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease as it was won: what it fences with, and the source with the position to go on from."""

    fence: int
    source: SourceInfo
