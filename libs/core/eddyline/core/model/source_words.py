"""What sources' definitions differ in, in words: for errors, and for logs of what was changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from eddyline.core.errors import SourceExists
from eddyline.core.model.source import changed_source
from eddyline.core.runtime.text import shown_bytes

if TYPE_CHECKING:
    from eddyline.core.model.source import SourceDefinition

FIELDS: Final = (
    "topic",
    "bucket",
    "stream",
    "key_prefixes",
    "subjects",
    "on_expired",
    "on_recreated",
    "dead_letter_topic",
)
SHOWN_CHARS_MAX: Final = 300
"""Of a value. 64 filters of 255 bytes would be more than an error carries."""


class SettingDifference(NamedTuple):
    """A field of two definitions, each as people read it."""

    field: str
    there: str
    other: str


def differences(there: SourceDefinition, other: SourceDefinition) -> tuple[SettingDifference, ...]:
    """The fields in which two definitions differ, in the order of `FIELDS`."""
    sides = ((field, getattr(there, field), getattr(other, field)) for field in FIELDS)
    return tuple(SettingDifference(field, shown(one), shown(two)) for field, one, two in sides if one != two)


def changes_text(before: SourceDefinition, after: SourceDefinition) -> str:
    """What a change did: "on_expired RESYNC -> STOP"; "" = nothing."""
    return ", ".join(f"{one.field} {one.there} -> {one.other}" for one in differences(before, after))


def definition_text(definition: SourceDefinition) -> str:
    """All that a definition says, but its name; what is empty is left out."""
    values = ((field, getattr(definition, field)) for field in FIELDS)
    return ", ".join(f"{field} {shown(value)}" for field, value in values if value)


def is_updatable(there: SourceDefinition, asked: SourceDefinition) -> bool:
    """Whether an update makes the one of the other: they differ in nothing that is settled when a source is made."""
    return changed_source(there, asked.changeable) == asked


def exists_otherwise(there: SourceDefinition, asked: SourceDefinition) -> SourceExists:
    """Why a source cannot be made: it is there, and is another one."""
    found = differences(there, asked)
    said = ", ".join(f"{one.field} {one.there}, not {one.other}" for one in found)
    settled = {} if is_updatable(there, asked) else {"isSettled": "true"}
    return SourceExists(
        f"source {there.name} copies {there.origin} to topic {there.topic}; it differs in {said}",
        source=there.name,
        bucket=there.bucket,
        topic=there.topic,
        askedBucket=asked.bucket,
        askedTopic=asked.topic,
        fields=",".join(one.field for one in found),
        **settled,
    )


def shown(value: str | tuple[bytes, ...] | tuple[str, ...]) -> str:
    """A name or filters for people, cut where they are long; "none" where there are none."""
    if not isinstance(value, str):
        value = ", ".join(shown_bytes(part) if isinstance(part, bytes) else part for part in value)
    return (value if len(value) <= SHOWN_CHARS_MAX else value[:SHOWN_CHARS_MAX] + "…") or "none"
