"""A source's definition as a manifest keeps it, and whether a topic's source is the same one.

Threading: pure functions.
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eddyline.core.model.source import SourceDefinition

_OWN: Final = ("name", "topic")
"""What a source may be called differently by, in another store."""


def source_body(definition: SourceDefinition) -> dict[str, object]:
    """What a manifest says of a source: all but its topic, which the manifest has."""
    return {
        field.name: _plain(getattr(definition, field.name)) for field in fields(definition) if field.name != "topic"
    }


def is_same_source(body: Mapping[str, object], definition: SourceDefinition) -> bool:
    """True = both copy the same: what either does not say has its default."""
    for field in fields(definition):
        if field.name in _OWN:
            continue
        default = MISSING if field.default is MISSING else _plain(field.default)
        if body.get(field.name, default) != _plain(getattr(definition, field.name)):
            return False
    return True


def _plain(value: object) -> object:
    """As JSON gives it back."""
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value
