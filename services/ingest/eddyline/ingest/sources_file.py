"""The sources file: what a replica makes sure exists before it serves.

    [[source]]
    name = "certs"      # source
    bucket = "certs"    # JetStream KV bucket
    topic = "certs"     # KV topic; made with defaults if it is missing

A source that is not there is created; one that is there is compared, and a difference ends the start with both named, and
what to do about it.
"""

from __future__ import annotations

import logging
import tomllib
from typing import TYPE_CHECKING, Final

from eddyline.core.errors import EddylineError, SourceExists, SourceNotFound
from eddyline.core.settings import SettingsError
from eddyline.core.source import SourceDefinition
from eddyline.core.source_words import definition_text, is_updatable
from eddyline.core.telemetry import fields
from eddyline.core.topic import TopicConfig
from eddyline.ingest.creation import check_definition, create_source
from eddyline.ingest.forward import retried

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eddyline.core.source import Policy
    from eddyline.core.store_link import StoreLink

log = logging.getLogger(__name__)

FIELDS: Final = ("name", "bucket", "stream", "topic", "on_expired", "on_recreated", "dead_letter_topic")
LISTS: Final = ("key_prefixes", "subjects")
_POLICIES: Final[dict[str, Policy]] = {"resync": "RESYNC", "stop": "STOP"}


def parse_sources(text: str, where: str) -> list[SourceDefinition]:
    """The definitions in a file's text; `where` names it in errors.

    Raises:
        SettingsError: not TOML, something unknown or missing, a bad name, or a name or topic given twice.
    """
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{where} is not TOML: {error}") from error
    entries = found.pop("source", [])
    if found:
        raise SettingsError(f"{where} has unknown {', '.join(sorted(found))}; it takes [[source]] tables")
    if not isinstance(entries, list):
        raise SettingsError(f"{where}: write [[source]], a table a source")
    definitions = [_definition(entry, f"{where}, source {number}") for number, entry in enumerate(entries, 1)]
    for field in ("name", "topic"):
        values = [getattr(definition, field) for definition in definitions]
        for value in values:
            if values.count(value) > 1:
                raise SettingsError(f"{where} gives {field} {value} to more than one source")
    return definitions


async def ensure_sources(link: StoreLink, definitions: Sequence[SourceDefinition], where: str) -> None:
    """Create what is missing, compare what is there.

    Raises:
        SettingsError: a source or topic is there and is another one. StoreUnreachable and its like: try again.
    """
    for definition in definitions:
        try:
            is_known = await _is_known(link, definition.name)
            await create_source(link, definition, TopicConfig())
            if not is_known:
                log.info("source created", extra=fields(source=definition.name, settings=definition_text(definition)))
        except SourceExists as error:
            way_out = _way_out(definition, (await link.get_source(definition.name)).definition)
            raise SettingsError(
                f"source {definition.name}: {where} says {definition.origin} to topic {definition.topic}, "
                f"the store says otherwise: {error.message}; {way_out}"
            ) from error
        except EddylineError as error:
            if retried(error):
                raise
            raise SettingsError(f"source {definition.name} of {where}: {error.message}") from error


async def _is_known(link: StoreLink, name: str) -> bool:
    """Whether there is one; asked by name, since a list would need every shard."""
    try:
        await link.get_source(name)
    except SourceNotFound:
        return False
    return True


def _way_out(asked: SourceDefinition, known: SourceDefinition) -> str:
    """What an operator does about a difference."""
    if not is_updatable(known, asked):
        return "change the file, or delete the source and give the new one a topic of its own"
    words = ["eddyline source update", asked.name]
    if asked.on_expired != known.on_expired:
        words.append(f"--on-expired {asked.on_expired.lower()}")
    if asked.on_recreated != known.on_recreated:
        words.append(f"--on-recreated {asked.on_recreated.lower()}")
    if asked.dead_letter_topic != known.dead_letter_topic:
        letters = asked.dead_letter_topic
        words.append(f"--dead-letter-topic {letters}" if letters else "--no-dead-letter-topic")
    return f"change the file, or bring the store in step with `{' '.join(words)}`"


def _definition(entry: object, where: str) -> SourceDefinition:
    if not isinstance(entry, dict):
        raise SettingsError(f"{where} is no table")
    unknown = sorted(set(entry) - {*FIELDS, *LISTS})
    if unknown:
        raise SettingsError(f"{where} has unknown {', '.join(unknown)}; it takes {', '.join((*FIELDS, *LISTS))}")
    if not all(isinstance(entry.get(field, ""), str) for field in FIELDS) or not {"name", "topic"} <= set(entry):
        raise SettingsError(f"{where} needs name, topic, and bucket or stream, each a text")
    for field in LISTS:
        values = entry.get(field, [])
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise SettingsError(f"{where}: {field} is a list of texts")
    definition = SourceDefinition(
        name=entry["name"],
        topic=entry["topic"],
        bucket=entry.get("bucket", ""),
        stream=entry.get("stream", ""),
        key_prefixes=tuple(prefix.encode() for prefix in entry.get("key_prefixes", ())),
        subjects=tuple(entry.get("subjects", ())),
        on_expired=_policy(entry, "on_expired", "resync", where),
        on_recreated=_policy(entry, "on_recreated", "stop", where),
        dead_letter_topic=entry.get("dead_letter_topic", ""),
    )
    try:
        check_definition(definition)
    except EddylineError as error:
        raise SettingsError(f"{where}: {error.message}") from error
    return definition


def _policy(entry: dict[str, str], field: str, default: str, where: str) -> Policy:
    asked = entry.get(field, default)
    if asked not in _POLICIES:
        raise SettingsError(f"{where}: {field} is resync or stop, not {asked!r}")
    return _POLICIES[asked]
