"""What a source is: its definition, and its state as the store keeps it.

What sources' definitions differ in, in words: for errors, and for logs of what was changed.
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
"""Of each kind. What a filter costs is paid for each message of the stream."""
BUCKET_BYTES_MAX: Final = 255
SETTINGS_BYTES_MAX: Final = 32 << 10
"""Of a definition's settings as one text: half of what a topic's record in the catalog has room for."""

Policy = Literal["RESYNC", "STOP"]
"""Names of the contract's `SourcePolicy`."""


class SourceChange(NamedTuple):
    """What an update changes of a source; None = it keeps its value. `dead_letter_topic` "" takes it away."""

    on_expired: Policy | None = None
    on_recreated: Policy | None = None
    dead_letter_topic: str | None = None


NO_CHANGE: Final = SourceChange()


@dataclass(frozen=True, slots=True)
class SourceDefinition:
    """One KV bucket to one KV topic, or one stream to one LOG topic. The source's name is its writer id.

    Of `bucket` and `stream` one is empty. A message is copied where one of `key_prefixes` or `subjects` names it, or where
    there are none of either. `dead_letter_topic` gets what does not fit; "" = that stops the source.
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
        """What it reads, in words."""
        return f"bucket {self.bucket}" if self.bucket else f"stream {self.stream}"

    @property
    def touched(self) -> tuple[str, ...]:
        """The names of ours and of NATS's that it reads and writes: who may see it must be allowed all of them."""
        others = (self.topic, self.bucket, self.stream, self.dead_letter_topic)
        return (self.name, *filter(None, others))

    @property
    def changeable(self) -> SourceChange:
        """The part of it that an update may change, as it is."""
        return SourceChange(self.on_expired, self.on_recreated, self.dead_letter_topic)

    @property
    def settings(self) -> str:
        """All but name, topic and bucket as one text, equal for equal definitions; "" = nothing but defaults."""
        given: dict[str, object] = {
            "dead_letter_topic": self.dead_letter_topic,
            "key_prefixes": [prefix.hex() for prefix in self.key_prefixes],
            "on_expired": "" if self.on_expired == "RESYNC" else self.on_expired,
            "on_recreated": "" if self.on_recreated == "STOP" else self.on_recreated,
            "stream": self.stream,
            "subjects": list(self.subjects),
        }
        given = {name: value for name, value in given.items() if value}
        return json.dumps(given, sort_keys=True, separators=(",", ":"), ensure_ascii=False) if given else ""


def definition_of(name: str, topic: str, bucket: str, settings: str) -> SourceDefinition:
    """The definition of a name, topic, bucket, and `SourceDefinition.settings`.

    Raises:
        ValueError, KeyError, TypeError: the settings are not such a text.
    """
    given = json.loads(settings) if settings else {}
    return SourceDefinition(
        name,
        topic,
        bucket,
        stream=str(given.get("stream", "")),
        key_prefixes=tuple(bytes.fromhex(prefix) for prefix in given.get("key_prefixes", ())),
        subjects=tuple(str(subject) for subject in given.get("subjects", ())),
        on_expired=cast("Policy", given.get("on_expired", "RESYNC")),
        on_recreated=cast("Policy", given.get("on_recreated", "STOP")),
        dead_letter_topic=str(given.get("dead_letter_topic", "")),
    )


def changed_source(definition: SourceDefinition, change: SourceChange) -> SourceDefinition:
    """The definition after an update, not judged yet (`check_definition`)."""
    return replace(
        definition,
        on_expired=change.on_expired or definition.on_expired,
        on_recreated=change.on_recreated or definition.on_recreated,
        dead_letter_topic=(
            definition.dead_letter_topic if change.dead_letter_topic is None else change.dead_letter_topic
        ),
    )


def check_definition(definition: SourceDefinition) -> None:
    """Raises InvalidName or InvalidArgument where a definition cannot be one. What NATS takes is ingest's to judge."""
    check_name(definition.name, "source")
    check_name(definition.topic, "topic")
    if definition.dead_letter_topic:
        check_name(definition.dead_letter_topic, "topic")
        if definition.dead_letter_topic == definition.topic:
            raise InvalidArgument("a source's dead letters need a topic of their own", field="dead_letter_topic")
    if bool(definition.bucket) == bool(definition.stream):
        raise InvalidArgument("a source has a bucket or a stream, and not both", field="bucket")
    for field, name in (("bucket", definition.bucket), ("stream", definition.stream)):
        if len(name.encode()) > BUCKET_BYTES_MAX:
            raise InvalidArgument(
                f"a {field}'s name has 1 to {BUCKET_BYTES_MAX} bytes", field=field, bucketBytesMax=BUCKET_BYTES_MAX
            )
    if definition.stream and definition.key_prefixes:
        raise InvalidArgument("only a bucket has keys: name a stream's subjects", field="key_prefixes")
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
    """What a holder reports of its source beside state and position; the fields are those of the contract.

    Times are in ms. `verified_ms` and `remaining_ms` -1 = never, and not known.
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
        """The same, `ms` milliseconds later."""
        return replace(
            self,
            state_ms=self.state_ms + ms,
            decision_ms=self.decision_ms + ms if self.decision else 0,
            verified_ms=self.verified_ms + ms if self.verified_ms >= 0 else -1,
        )


@dataclass(frozen=True, slots=True)
class SourceReport:
    """What a holder says of its source at each renewal. `state` is a name of the contract's `SourceStatus`; `detail` None =
    a holder of an older version, or nothing was reported."""

    state: str = ""
    reason: str = ""
    last_revision: int = 0
    lag: int = 0
    detail: SourceDetail | None = None


class ControlState(NamedTuple):
    """What is asked of whoever holds a source. `resync_serial` = resyncs asked for so far; the position knows which are
    done."""

    paused: bool = False
    resync_serial: int = 0


NO_ORDERS: Final = ControlState()


OF_ANOTHER: Final = frozenset(("STREAM_RECREATED", "CURSOR_AHEAD"))
"""Of the contract's `SourceStatus` those in which the stream that is there now is not the one that was copied: its revisions
say nothing about what was copied."""
KEPT_STOP: Final = "CURSOR_AHEAD"
"""Of the contract's `SourceStatus` the stop that is stored: a stream that was rolled back comes to look right again once it
has grown."""


class SourceStop(NamedTuple):
    """A stop that only a resync ends, over restarts: state and reason as the holder reported them, and the position that the
    source had then. Whoever knows positions tells whether a resync was done since."""

    state: str
    reason: str
    position: bytes


@dataclass(frozen=True, slots=True)
class SourceInfo:
    """A source at one moment. `reported_ms` = time since the last report, `gap_ms` since the last gap, `changed_ms` since
    the last batch with records, each in ms, -1 = never since the store started; `gap_count` is since then too."""

    definition: SourceDefinition
    position: bytes
    fence: int
    holder: str
    lease_remaining_ms: int
    report: SourceReport
    reported_ms: int
    head_seq: int
    orders: ControlState = NO_ORDERS
    epoch: int = 0
    gap_count: int = 0
    gap_ms: int = -1
    changed_ms: int = -1
    stop: SourceStop | None = None


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease as it was won: what it fences with, and the source with the position to go on from."""

    fence: int
    source: SourceInfo


class Renewal(NamedTuple):
    """A lease prolonged: the time it now runs, what is asked of its holder, and the changeable part of the definition as it
    is now (nothing of it = as the lease said)."""

    remaining_ms: int
    orders: ControlState = NO_ORDERS
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
        value = ", ".join(printable(part) if isinstance(part, bytes) else part for part in value)
    return (value if len(value) <= SHOWN_CHARS_MAX else value[:SHOWN_CHARS_MAX] + "…") or "none"
