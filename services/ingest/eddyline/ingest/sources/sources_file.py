"""The sources file: sources that a replica creates before it serves.

    [[source]]
    name = "certs"      # source
    bucket = "certs"    # JetStream KV bucket
    topic = "certs"     # KV topic; created with defaults if it is missing

The file is compared with the store in both directions, at the start and with each report of a source:

* a source that does not exist is created; where the store refuses it, creation is tried again each `RETRY_S`;
* a source with other policies or another dead-letter topic gets those of the file at the start. A change by hand holds
  until then;
* a source that differs in fixed fields is copied as the store has it, and its `file_drift` reports the difference;
* a source that the file does not name is copied too, with a warning.

I1: no difference ends the process: every remedy needs an ingest that runs. Only a file that cannot be read or parsed ends
it; the remedy for that is in the file.
"""

from __future__ import annotations

import logging
import tomllib
from typing import TYPE_CHECKING, Final

from eddyline.core.errors import EddylineError, SourceExists, SourceNotFound
from eddyline.core.model.source import SourceDefinition, changes_text, definition_text, differences, is_updatable
from eddyline.core.model.topic import TopicConfig
from eddyline.core.runtime.logging import fields
from eddyline.core.runtime.settings import SettingsError
from eddyline.ingest.copy.forward import retried
from eddyline.ingest.sources.creation import check_new_source, create_source, update_source

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from eddyline.core.model.source import Policy
    from eddyline.core.store_link.protocol import StoreLink

log = logging.getLogger(__name__)

RETRY_S: Final = 30.0
"""Interval at which refused sources are tried again: the reason for the refusal may be gone."""
FIELDS: Final = ("name", "bucket", "stream", "topic", "on_expired", "on_recreated", "dead_letter_topic")
LISTS: Final = ("key_prefixes", "subjects")
_POLICIES: Final[dict[str, Policy]] = {"resync": "RESYNC", "stop": "STOP"}


def parse_sources(text: str, where: str) -> list[SourceDefinition]:
    """Parse a file's text into definitions; `where` names the file in errors.

    Raises:
        SettingsError: not TOML, something unknown or missing, a bad name, or a name or topic given twice.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{where} is not TOML: {error}") from error
    entries = document.pop("source", [])
    if document:
        raise SettingsError(
            f"{where} has unknown keys {', '.join(sorted(document))}; only [[source]] tables are allowed"
        )
    if not isinstance(entries, list):
        raise SettingsError(f"{where}: write [[source]] in double brackets, one table for each source")
    definitions = [_definition(entry, f"{where}, source {number}") for number, entry in enumerate(entries, 1)]
    for field in ("name", "topic"):
        values = [getattr(definition, field) for definition in definitions]
        for value in values:
            if values.count(value) > 1:
                raise SettingsError(f"{where} has {field} {value} in more than one source")
    return definitions


class SourcesFile:
    """Definitions of a file, compared with the store. `where` = its path; without a file nothing differs."""

    def __init__(self, definitions: Sequence[SourceDefinition] = (), where: str = "") -> None:
        self.where = where
        self._definitions = {definition.name: definition for definition in definitions}
        self._refused: dict[str, str] = {}

    @property
    def has_refused(self) -> bool:
        """True = the store refused a source of the file."""
        return bool(self._refused)

    def drift(self, definition: SourceDefinition) -> str:
        """Describe how a source of the store differs from the file, with the remedy; "" = no difference."""
        wanted = self._definitions.get(definition.name)
        if wanted is None or wanted == definition:
            return ""
        differing = ", ".join(f"{one.field} {one.there}, not {one.other}" for one in differences(definition, wanted))
        hint = (
            "the next start of ingest restores the file's values: change the file"
            if is_updatable(definition, wanted)
            else "it cannot be updated: change the file, or delete the source and create one with its own topic"
        )
        return f"it differs from {self.where} in {differing}; {hint}"

    def note(self, name: str) -> str:
        """Warning for a source that the file does not name; "" = it does, or there is no file."""
        if not self.where or name in self._definitions:
            return ""
        return f"it is not in {self.where}; it is copied until `eddyline source delete {name}`"

    def names(self, name: str) -> bool:
        """True = the file has a source of this name."""
        return name in self._definitions

    def missing(self, existing: Collection[str]) -> dict[str, str]:
        """Warnings for sources of the file that the store does not have, by name."""
        return {
            name: f"{self.where} has source {name}, which does not exist: "
            f"{self._refused.get(name, 'it was deleted; the next start of ingest creates it again')}"
            for name in self._definitions
            if name not in existing
        }

    def remakes(self, name: str) -> list[str]:
        """Warning for a deleted source that the next start creates again; empty = the file does not name it."""
        return (
            [f"{self.where} has {name}: the next start of ingest creates it again"] if name in self._definitions else []
        )

    async def ensure(self, link: StoreLink) -> None:
        """Create missing sources, and set policies and dead-letter topics as the file has them.

        Raises:
            StoreUnreachable and other errors that a retry may cure.
        """
        for definition in self._definitions.values():
            await self._ensure(link, definition)

    async def retry(self, link: StoreLink) -> None:
        """Try the refused sources again.

        Raises:
            As `ensure`.
        """
        for name in tuple(self._refused):
            await self._ensure(link, self._definitions[name])

    async def _ensure(self, link: StoreLink, definition: SourceDefinition) -> None:
        name = definition.name
        try:
            exists = await _exists(link, name)
            try:
                await create_source(link, definition, TopicConfig())
            except SourceExists:
                await self._update_existing(link, definition)
            if not exists:
                log.info("source created", extra=fields(source=name, settings=definition_text(definition)))
            self._refused.pop(name, None)
        except EddylineError as error:
            if retried(error):
                raise
            if self._refused.get(name) != error.message:
                log.error("source refused", extra=fields(source=name, file=self.where, reason=error.message))
            self._refused[name] = error.message

    async def _update_existing(self, link: StoreLink, wanted: SourceDefinition) -> None:
        """Set the changeable fields; log a difference in the others."""
        existing = (await link.get_source(wanted.name)).definition
        if not is_updatable(existing, wanted):
            log_fields = fields(source=wanted.name, reason=self.drift(existing))
            log.warning("source differs from its file", extra=log_fields)
            return
        await update_source(link, wanted.name, wanted.changeable)
        changes = changes_text(existing, wanted)
        log.info("source updated", extra=fields(source=wanted.name, changes=changes, file=self.where))


async def _exists(link: StoreLink, name: str) -> bool:
    """Whether the source exists; asks by name, since a list would need every shard."""
    try:
        await link.get_source(name)
    except SourceNotFound:
        return False
    return True


def _definition(entry: object, where: str) -> SourceDefinition:
    if not isinstance(entry, dict):
        raise SettingsError(f"{where} is not a table")
    unknown = sorted(set(entry) - {*FIELDS, *LISTS})
    if unknown:
        raise SettingsError(
            f"{where} has unknown keys {', '.join(unknown)}; allowed are {', '.join((*FIELDS, *LISTS))}"
        )
    missing = [field for field in ("name", "topic") if field not in entry]
    if not {"bucket", "stream"} & set(entry):
        missing.append("bucket or stream")
    if missing:
        raise SettingsError(f"{where} needs {', '.join(missing)}: name, topic, and bucket or stream are required")
    for field in FIELDS:
        if not isinstance(entry.get(field, ""), str):
            raise SettingsError(f"{where}: {field} must be a string in quotes, not {entry[field]!r}")
    for field in LISTS:
        values = entry.get(field, [])
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise SettingsError(f"{where}: {field} must be a list of strings")
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
        check_new_source(definition)
    except EddylineError as error:
        raise SettingsError(f"{where}: {error.message}") from error
    return definition


def _policy(entry: dict[str, str], field: str, default: str, where: str) -> Policy:
    wanted = entry.get(field, default)
    if wanted not in _POLICIES:
        raise SettingsError(f"{where}: {field} must be resync or stop, not {wanted!r}")
    return _POLICIES[wanted]
