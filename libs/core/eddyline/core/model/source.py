"""Sources: definition, control state, reports, leases, and the state that the store keeps.

Differences between definitions are also available as text, for errors and for logs of changes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple, cast

from eddyline.core.errors import InvalidArgument, SourceExists
from eddyline.core.model.topic import check_name
from eddyline.core.runtime.text import printable

LEASE_MS_DEFAULT: Final = 5_000
LEASE_MS_MIN: Final = 100
LEASE_MS_MAX: Final = 60_000
FILTERS_MAX: Final = 64
"""Of each kind. Every message of the stream is compared with each filter."""
BUCKET_BYTES_MAX: Final = 255
SETTINGS_BYTES_MAX: Final = 32 << 10
"""Of a definition's settings as one text: half of the room in a topic's catalog record."""

Policy = Literal["RESYNC", "STOP"]
"""Names of the contract's `SourcePolicy`."""


class SourceChange(NamedTuple):
    """Settings changed by an update of a source; None = unchanged. `dead_letter_topic` "" removes it."""

    on_expired: Policy | None = None
    on_recreated: Policy | None = None
    dead_letter_topic: str | None = None


NO_CHANGE: Final = SourceChange()


@dataclass(frozen=True, slots=True)
class SourceDefinition:
    """One KV bucket to one KV topic, or one stream to one LOG topic. The source's name is its writer id.

    One of `bucket` and `stream` is empty. A message is copied if one of `key_prefixes` or `subjects` matches it, or if
    there are none of either. `dead_letter_topic` gets the messages that do not fit; "" = such a message stops the
    source.
    """

    name: str
    topic: str
    bucket: str = ""
    stream: str = ""
    key_prefixes: tuple[bytes, ...] = ()
    subjects: tuple[str, ...] = ()
    on_expired: Policy = "RESYNC"
    on_recreated: Policy = "STOP"
    dead_letter_topic: str = ""

    @property
    def origin(self) -> str:
        """Its origin as text: a bucket or a stream."""
        return f"bucket {self.bucket}" if self.bucket else f"stream {self.stream}"

    @property
    def touched(self) -> tuple[str, ...]:
        """Names that it reads and writes, ours and NATS's: a caller must be allowed all of them to see the source."""
        others = (self.topic, self.bucket, self.stream, self.dead_letter_topic)
        return (self.name, *filter(None, others))

    @property
    def changeable(self) -> SourceChange:
        """The present values of the settings that an update may change."""
        return SourceChange(self.on_expired, self.on_recreated, self.dead_letter_topic)

    @property
    def settings(self) -> str:
        """All fields but name, topic and bucket as one text, equal for equal definitions; "" = all defaults."""
        fields: dict[str, object] = {
            "dead_letter_topic": self.dead_letter_topic,
            "key_prefixes": [prefix.hex() for prefix in self.key_prefixes],
            "on_expired": "" if self.on_expired == "RESYNC" else self.on_expired,
            "on_recreated": "" if self.on_recreated == "STOP" else self.on_recreated,
            "stream": self.stream,
            "subjects": list(self.subjects),
        }
        fields = {name: value for name, value in fields.items() if value}
        return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False) if fields else ""


def definition_of(name: str, topic: str, bucket: str, settings: str) -> SourceDefinition:
    """Return the definition of a name, topic, bucket, and `SourceDefinition.settings`.

    Raises:
        ValueError, KeyError, TypeError: the settings are not such a text.
    """
    fields = json.loads(settings) if settings else {}
    return SourceDefinition(
        name,
        topic,
        bucket,
        stream=str(fields.get("stream", "")),
        key_prefixes=tuple(bytes.fromhex(prefix) for prefix in fields.get("key_prefixes", ())),
        subjects=tuple(str(subject) for subject in fields.get("subjects", ())),
        on_expired=cast("Policy", fields.get("on_expired", "RESYNC")),
        on_recreated=cast("Policy", fields.get("on_recreated", "STOP")),
        dead_letter_topic=str(fields.get("dead_letter_topic", "")),
    )


def changed_source(definition: SourceDefinition, change: SourceChange) -> SourceDefinition:
    """Return the definition after an update, unchecked (`check_definition`)."""
    return replace(
        definition,
        on_expired=change.on_expired or definition.on_expired,
        on_recreated=change.on_recreated or definition.on_recreated,
        dead_letter_topic=(
            definition.dead_letter_topic if change.dead_letter_topic is None else change.dead_letter_topic
        ),
    )


def check_definition(definition: SourceDefinition) -> None:
    """Refuse an invalid definition. Ingest checks the names by NATS's rules.

    Raises:
        InvalidName, InvalidArgument.
    """
    check_name(definition.name, "source")
    check_name(definition.topic, "topic")
    if definition.dead_letter_topic:
        check_name(definition.dead_letter_topic, "topic")
        if definition.dead_letter_topic == definition.topic:
            raise InvalidArgument("dead_letter_topic must differ from the source's topic", field="dead_letter_topic")
    if bool(definition.bucket) == bool(definition.stream):
        raise InvalidArgument("a source needs a bucket or a stream, not both", field="bucket")
    for field, name in (("bucket", definition.bucket), ("stream", definition.stream)):
        if len(name.encode()) > BUCKET_BYTES_MAX:
            raise InvalidArgument(
                f"a {field}'s name has 1 to {BUCKET_BYTES_MAX} bytes", field=field, bucketBytesMax=BUCKET_BYTES_MAX
            )
    if definition.stream and definition.key_prefixes:
        raise InvalidArgument("a stream has no keys: filter it by subjects", field="key_prefixes")
    for field, filters in (("key_prefixes", definition.key_prefixes), ("subjects", definition.subjects)):
        if len(filters) > FILTERS_MAX or not all(filters):
            raise InvalidArgument(
                f"at most {FILTERS_MAX} {field}, none of them empty", field=field, filtersMax=FILTERS_MAX
            )
    if len(definition.settings.encode()) > SETTINGS_BYTES_MAX:
        raise InvalidArgument(
            f"a source's filters and names have at most {SETTINGS_BYTES_MAX} bytes together",
            field="subjects",
            settingsBytesMax=SETTINGS_BYTES_MAX,
        )


WARNINGS_MAX: Final = 16
TEXT_BYTES_MAX: Final = 1024
"""Of each text in a report: a reason, a decision, a warning."""


@dataclass(frozen=True, slots=True)
class SourceDetail:
    """A holder's report beyond state and position; the fields are those of the contract.

    Times are in ms. `verified_ms` -1 = never, `remaining_ms` -1 = unknown.
    """

    state_ms: int = 0
    decision: str = ""
    decision_ms: int = 0
    warnings: tuple[str, ...] = ()
    file_drift: str = ""
    drift_count: int = 0
    verified_ms: int = -1
    revisions_per_s: int = 0
    remaining_ms: int = -1

    def after(self, ms: int) -> SourceDetail:
        """Return the same report, `ms` milliseconds later."""
        return replace(
            self,
            state_ms=self.state_ms + ms,
            decision_ms=self.decision_ms + ms if self.decision else 0,
            verified_ms=self.verified_ms + ms if self.verified_ms >= 0 else -1,
        )


@dataclass(frozen=True, slots=True)
class SourceReport:
    """A holder's report at each renewal of its lease.

    `state` is a name of the contract's `SourceStatus`; `detail` None = a holder of an older version, or no report yet.
    """

    state: str = ""
    reason: str = ""
    last_revision: int = 0
    lag: int = 0
    detail: SourceDetail | None = None


class ControlState(NamedTuple):
    """Control state of one source: paused, and the number of resyncs requested so far.

    The store persists it and returns it with every lease renewal. The position has the number of the last completed
    resync.
    """

    paused: bool = False
    resync_serial: int = 0


NO_CONTROL: Final = ControlState()


OTHER_STREAM_STATES: Final = frozenset(("STREAM_RECREATED", "CURSOR_AHEAD"))
"""States of the contract's `SourceStatus` in which the present stream is not the one that was copied: its revisions say
nothing about the copied records.
"""
PERSISTENT_STOP: Final = "CURSOR_AHEAD"
"""State of the contract's `SourceStatus` that is stored: a stream that was rolled back looks correct again once it has
grown.
"""


class SourceStop(NamedTuple):
    """A stop that only a resync ends, also after restarts.

    State and reason are the holder's, `position` is the source's at that time. A reader that decodes positions can tell
    whether a resync was completed since.
    """

    state: str
    reason: str
    position: bytes


@dataclass(frozen=True, slots=True)
class SourceInfo:
    """A source at one moment.

    `reported_ms` = time since the last report, `gap_ms` since the last gap, `changed_ms` since the last batch with
    records, each in ms, -1 = never since the store started; `gap_count` counts since then too.
    """

    definition: SourceDefinition
    position: bytes
    fence: int
    holder: str
    lease_remaining_ms: int
    report: SourceReport
    reported_ms: int
    head_seq: int
    control: ControlState = NO_CONTROL
    epoch: int = 0
    gap_count: int = 0
    gap_ms: int = -1
    changed_ms: int = -1
    stop: SourceStop | None = None


@dataclass(frozen=True, slots=True)
class Lease:
    """A newly acquired lease: its fencing token, and the source with the position to continue from."""

    fence: int
    source: SourceInfo


class Renewal(NamedTuple):
    """A renewed lease: remaining time, the source's control state, and its present changeable settings.

    `changeable` without values = the settings are those of the lease.
    """

    remaining_ms: int
    control: ControlState = NO_CONTROL
    changeable: SourceChange = NO_CHANGE


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
SETTING_CHARS_MAX: Final = 300
"""Of one value: 64 filters of 255 bytes would be more than an error carries."""


class SettingDifference(NamedTuple):
    """A field that differs between two definitions, each value as text."""

    field: str
    there: str
    other: str


def differences(existing: SourceDefinition, other: SourceDefinition) -> tuple[SettingDifference, ...]:
    """Return the fields in which two definitions differ, in the order of `FIELDS`."""
    sides = ((field, getattr(existing, field), getattr(other, field)) for field in FIELDS)
    return tuple(
        SettingDifference(field, setting_text(one), setting_text(two)) for field, one, two in sides if one != two
    )


def changes_text(old: SourceDefinition, new: SourceDefinition) -> str:
    """Return the changes as text: "on_expired RESYNC -> STOP"; "" = none."""
    return ", ".join(f"{one.field} {one.there} -> {one.other}" for one in differences(old, new))


def definition_text(definition: SourceDefinition) -> str:
    """Return all fields of a definition but its name as text; empty ones are left out."""
    values = ((field, getattr(definition, field)) for field in FIELDS)
    return ", ".join(f"{field} {setting_text(value)}" for field, value in values if value)


def is_updatable(existing: SourceDefinition, requested: SourceDefinition) -> bool:
    """Return True if an update can make `requested` of `existing`: no field differs that is fixed at creation."""
    return changed_source(existing, requested.changeable) == requested


def source_conflict(existing: SourceDefinition, requested: SourceDefinition) -> SourceExists:
    """Return the error for a definition whose name another definition has."""
    differing = differences(existing, requested)
    differences_text = ", ".join(f"{one.field} {one.there}, not {one.other}" for one in differing)
    metadata = {} if is_updatable(existing, requested) else {"isSettled": "true"}
    return SourceExists(
        f"source {existing.name} copies {existing.origin} to topic {existing.topic}; it differs in {differences_text}",
        source=existing.name,
        bucket=existing.bucket,
        topic=existing.topic,
        askedBucket=requested.bucket,
        askedTopic=requested.topic,
        fields=",".join(one.field for one in differing),
        **metadata,
    )


def setting_text(value: str | tuple[bytes, ...] | tuple[str, ...]) -> str:
    """Return a name or filters as text, cut if they are long; "none" if empty."""
    if not isinstance(value, str):
        value = ", ".join(printable(part) if isinstance(part, bytes) else part for part in value)
    return (value if len(value) <= SETTING_CHARS_MAX else value[:SETTING_CHARS_MAX] + "…") or "none"
