"""What UpdateSource asks for, judged: what may change, and what is settled when a source is made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from eddyline.core.codec.state import policy_from_pb, source_definition_from_pb
from eddyline.core.errors import InvalidArgument
from eddyline.core.model.source import SourceChange
from eddyline.core.model.source_words import shown

if TYPE_CHECKING:
    from eddyline.core.model.source import SourceDefinition
    from eddyline.v1 import source_pb2

SETTLED: Final = ("name", "topic", "bucket", "stream", "key_prefixes", "subjects")
"""Fields of a definition that no update changes. Others records would be in the topic, or should be, than it has."""


def change_of(request: source_pb2.UpdateSourceRequest, known: SourceDefinition) -> SourceChange:
    """What the request changes of a source.

    Raises:
        InvalidArgument: what is settled, or a dead-letter topic that is given and taken away. NotYet: a policy or a setting
            that this version does not know.
    """
    asked = source_definition_from_pb(request.definition)
    for field in SETTLED:
        there, wanted = getattr(known, field), getattr(asked, field)
        if wanted and wanted != there:
            raise InvalidArgument(
                f"{field} of source {known.name} was settled when it was made ({shown(there)}, not {shown(wanted)}): "
                "make another source, with a topic of its own, and delete this one",
                field=field,
            )
    letters: str | None = asked.dead_letter_topic or None
    if request.clear_dead_letter_topic:
        if letters:
            raise InvalidArgument(
                "a dead-letter topic is given, and is to be taken away: one of the two", field="clear_dead_letter_topic"
            )
        letters = ""
    return SourceChange(
        policy_from_pb(request.definition.on_expired, "on_expired"),
        policy_from_pb(request.definition.on_recreated, "on_recreated"),
        letters,
    )
