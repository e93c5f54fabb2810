"""Sources of a shard: definitions, fences and leases, kept with their topics.

`WriterChange` frames persist the definition, its updates and deletion, the control state, a stop that only a resync ends,
and each lease's fence and holder. Deadlines, reports and counts are in memory: after a restart each lease runs once more in
full, and counts start at 0.

I1: a fence grows with every lease and is durable before it is returned; from its staging on, smaller ones are refused.
Threading: event loop only.
"""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from eddyline.core.errors import (
    InvalidArgument,
    LeaseHeld,
    NotKv,
    NotLog,
    SourceNotFound,
    StaleFence,
    TopicHasSource,
    TopicNotEmpty,
)
from eddyline.core.model.source import (
    LEASE_MS_DEFAULT,
    LEASE_MS_MAX,
    LEASE_MS_MIN,
    NO_CONTROL,
    PERSISTENT_STOP,
    ControlState,
    Renewal,
    SourceDefinition,
    SourceInfo,
    SourceReport,
    SourceStop,
    definition_of,
)
from eddyline.core.model.topic import Kind, check_name
from eddyline.core.records.record import Op

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eddyline.core.model.source import SourceDefinition, SourceStop
    from eddyline.core.records.batch import Batch
    from eddyline.core.runtime.clock import Clock
    from eddyline.store.log.topic import Topic


HOLDER_BYTES_MAX: Final = 255
LEASED: Final = "CONNECTING"
"""State of a source from the begin of a lease until its holder reports; a name of the contract's `SourceStatus`."""


class RegisteredSource:
    """One source in memory."""

    __slots__ = (
        "changed_s",
        "control",
        "deadline_s",
        "definition",
        "fence",
        "gap_count",
        "gap_s",
        "holder",
        "lease_ms",
        "report",
        "reported_s",
        "stop",
        "topic",
    )

    def __init__(self, definition: SourceDefinition, topic: Topic) -> None:
        self.definition = definition
        self.topic = topic
        self.fence = 0
        self.holder = ""
        self.control = ControlState()
        self.stop: SourceStop | None = None
        self.lease_ms = LEASE_MS_DEFAULT
        self.deadline_s = 0.0
        self.report = SourceReport()
        self.reported_s = self.changed_s = self.gap_s = -1.0
        self.gap_count = 0


class SourceTable:
    """The sources of a shard, by name."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._by_name: dict[str, RegisteredSource] = {}

    def __len__(self) -> int:
        return len(self._by_name)

    def find(self, name: str) -> RegisteredSource | None:
        """Return the source of this name, or None."""
        return self._by_name.get(name)

    def get(self, name: str) -> RegisteredSource:
        """Return the source of this name.

        Raises:
            InvalidName, SourceNotFound.
        """
        source = self._by_name.get(name)
        if source is None:
            check_name(name, "source")
            raise SourceNotFound(f"no source {name}", source=name)
        return source

    def add(self, definition: SourceDefinition, topic: Topic) -> None:
        """Add a source: its definition is committed."""
        self._by_name[definition.name] = RegisteredSource(definition, topic)
        topic.source = definition.name

    def remove(self, name: str) -> None:
        """Remove a source: its deletion, or that of its topic, is committed."""
        source = self._by_name.pop(name, None)
        if source is not None:
            source.topic.source = ""
            source.topic.writers.forget(name)

    def names_after(self, after: str, limit: int) -> list[str]:
        """Return up to `limit` names above `after`, in order."""
        return sorted(name for name in self._by_name if name > after)[:limit]

    def next_fence(self, source: RegisteredSource, holder: str, lease_ms: int) -> int:
        """Return the fence for a new lease of `holder`; all smaller fences are refused from now on.

        Raises:
            InvalidArgument: holder or time out of bounds. LeaseHeld: another holder's lease still runs.
        """
        if not holder or len(holder.encode()) > HOLDER_BYTES_MAX:
            raise InvalidArgument(
                f"a holder must have 1 to {HOLDER_BYTES_MAX} bytes", field="holder", holderBytesMax=HOLDER_BYTES_MAX
            )
        if lease_ms and not LEASE_MS_MIN <= lease_ms <= LEASE_MS_MAX:
            raise InvalidArgument(
                f"lease_ms must be {LEASE_MS_MIN} to {LEASE_MS_MAX}, not {lease_ms}",
                field="lease_ms",
                leaseMs=lease_ms,
                leaseMsMin=LEASE_MS_MIN,
                leaseMsMax=LEASE_MS_MAX,
            )
        remaining_ms = self._remaining_ms(source)
        if source.holder and source.holder != holder and remaining_ms > 0:
            raise LeaseHeld(
                f"source {source.definition.name} is leased by {source.holder} for another {remaining_ms} ms",
                source=source.definition.name,
                holder=source.holder,
                remainingMs=remaining_ms,
            )
        fence = max(source.fence, source.topic.writers.get(source.definition.name).fence) + 1
        source.topic.writers.set_fence(source.definition.name, fence)
        source.fence = fence
        return fence

    def leased(self, source: RegisteredSource, *, fence: int, holder: str, lease_ms: int) -> None:
        """Begin a committed or replayed lease: it runs from now. The previous holder's report no longer counts."""
        source.fence = max(source.fence, fence)
        source.holder = holder
        source.lease_ms = lease_ms or LEASE_MS_DEFAULT
        source.deadline_s = self._clock.monotonic_s() + source.lease_ms / 1000
        if source.report.state:
            source.report = replace(source.report, state=LEASED, reason="", detail=None)
        source.topic.writers.set_fence(source.definition.name, fence)

    def renew(self, name: str, fence: int, report: SourceReport) -> Renewal:
        """Prolong a lease and store its holder's report.

        Raises:
            SourceNotFound, StaleFence.
        """
        source = self._held(name, fence)
        source.deadline_s = self._clock.monotonic_s() + source.lease_ms / 1000
        source.report = report
        source.reported_s = self._clock.monotonic_s()
        return Renewal(source.lease_ms, source.control, source.definition.changeable)

    def release(self, name: str, fence: int) -> None:
        """End a lease now. Not logged: after a restart it would run once more, which delays a new holder and loses nothing.

        Raises:
            SourceNotFound, StaleFence.
        """
        source = self._held(name, fence)
        source.holder = ""
        source.deadline_s = 0.0

    def info(self, source: RegisteredSource) -> SourceInfo:
        """Return the source as callers see it; everything up to its position is applied."""
        remaining_ms = self._remaining_ms(source)
        reported_ms, report = self._since_ms(source.reported_s), source.report
        if report.detail is not None:
            report = replace(report, detail=report.detail.after(max(reported_ms, 0)))
        return SourceInfo(
            definition=source.definition,
            position=source.topic.writers.get(source.definition.name).stored,
            fence=source.fence,
            holder=source.holder if remaining_ms > 0 else "",
            lease_remaining_ms=max(remaining_ms, 0),
            report=report,
            reported_ms=reported_ms,
            head_seq=source.topic.head_seq,
            control=source.control,
            epoch=source.topic.id,
            gap_count=source.gap_count,
            gap_ms=self._since_ms(source.gap_s),
            changed_ms=self._since_ms(source.changed_s),
            stop=source.stop,
        )

    def applied(self, source: RegisteredSource, batch: Batch) -> None:
        """Count an applied batch with records of the source."""
        source.changed_s = self._clock.monotonic_s()
        gap_count = bytes(batch.ops or b"").count(Op.GAP)
        if gap_count:
            source.gap_count += gap_count
            source.gap_s = source.changed_s

    def staleness(self, name: str) -> tuple[str, int]:
        """Return the state last reported and the time since, in ms; empty and 0 without a source or a report."""
        source = self._by_name.get(name)
        if source is None:
            return "", 0
        # A stop that only a resync ends holds for the fold until the source is LIVE again, under any holder.
        state = source.stop.state if source.stop is not None else source.report.state
        if source.reported_s < 0:
            return (state if source.stop is not None else ""), 0
        return state, int((self._clock.monotonic_s() - source.reported_s) * 1000)

    def _held(self, name: str, fence: int) -> RegisteredSource:
        source = self.get(name)
        if fence != source.fence or not source.holder:
            raise StaleFence(
                f"source {name} has fence {source.fence}, the call has fence {fence}",
                source=name,
                fence=source.fence,
                carriedFence=fence,
            )
        return source

    def _since_ms(self, moment_s: float) -> int:
        """Return the time since a moment, in ms; -1 = it never came."""
        return -1 if moment_s < 0 else int((self._clock.monotonic_s() - moment_s) * 1000)

    def _remaining_ms(self, source: RegisteredSource) -> int:
        return int((source.deadline_s - self._clock.monotonic_s()) * 1000) if source.holder else 0


def put_body(definition: SourceDefinition) -> dict[str, str | int]:
    """Return the `WriterChange` of a new source."""
    body: dict[str, str | int] = {"bucket": definition.bucket, "change": "put", "source": definition.name}
    if definition.settings:
        body["settings"] = definition.settings
    return body


def put_definition(topic: Topic, body: Mapping[str, str | int]) -> SourceDefinition:
    """Return the definition of such a change."""
    return definition_of(str(body["source"]), topic.name, str(body["bucket"]), str(body.get("settings", "")))


def update_body(definition: SourceDefinition) -> dict[str, str | int]:
    """Return the `WriterChange` of a source with changed settings; it has all of them."""
    return {"change": "update", "settings": definition.settings, "source": definition.name}


def updated_definition(current: SourceDefinition, body: Mapping[str, str | int]) -> SourceDefinition:
    """Return the definition after such a change."""
    return definition_of(current.name, current.topic, current.bucket, str(body["settings"]))


def control_change_body(name: str, orders: ControlState, stop: SourceStop | None) -> dict[str, str | int]:
    """Return the `WriterChange` of a source with a changed control state or stop; it has both in full."""
    body: dict[str, str | int] = {
        "change": "orders",
        "paused": int(orders.paused),
        "resync_serial": orders.resync_serial,
        "source": name,
    }
    if stop is not None:
        position = base64.b64encode(stop.position).decode()
        body |= {"stop": stop.state, "stop_position": position, "stop_reason": stop.reason}
    return body


def put_control(body: Mapping[str, str | int]) -> ControlState:
    """Return the control state of a change of kind `orders`."""
    return ControlState(bool(body["paused"]), int(body["resync_serial"]))


def put_stop(body: Mapping[str, str | int]) -> SourceStop | None:
    """Return the stop of such a change; None = none, or it was written by a version that did not persist stops."""
    if "stop" not in body:
        return None
    return SourceStop(str(body["stop"]), str(body["stop_reason"]), base64.b64decode(str(body["stop_position"])))


def stop_after(source: RegisteredSource, report: SourceReport) -> SourceStop | None:
    """Return the stop to keep after a report: the reported one, at the source's current position; none once it is LIVE;
    else the previous one."""
    if report.state == "LIVE":
        return None
    position = source.topic.writers.get(source.definition.name).stored
    if report.state != PERSISTENT_STOP or (source.stop is not None and source.stop.position == position):
        return source.stop
    return SourceStop(report.state, report.reason, position)


def change_writer(sources: SourceTable, topic: Topic, body: dict[str, str | int]) -> None:
    """Apply a committed WriterChange of a source: put, update, lease, orders or delete. (On replay:
    `eddyline.store.recovery.replay`.)"""
    name, change = str(body["source"]), body["change"]
    if change == "put":
        sources.add(put_definition(topic, body), topic)
    elif change == "delete":
        sources.remove(name)
    elif (source := sources.find(name)) is not None and change == "orders":
        source.control, source.stop = put_control(body), put_stop(body)
    elif source is not None and change == "update":
        source.definition = updated_definition(source.definition, body)
    elif source is not None:
        sources.leased(source, fence=int(body["fence"]), holder=str(body["holder"]), lease_ms=int(body["lease_ms"]))


def check_takes_source(topic: Topic, definition: SourceDefinition) -> None:
    """Raise NotKv, NotLog, TopicHasSource or TopicNotEmpty if a topic cannot get a source."""
    if definition.stream and topic.kind is not Kind.LOG:
        raise NotLog(f"topic {topic.name} is a KV topic, a stream needs a LOG topic", topic=topic.name)
    if definition.bucket and topic.kind is not Kind.KV:
        raise NotKv(f"topic {topic.name} is a LOG topic, a bucket needs a KV topic", topic=topic.name)
    if topic.source:
        raise TopicHasSource(f"topic {topic.name} has source {topic.source}", topic=topic.name, source=topic.source)
    if topic.has_records:
        raise TopicNotEmpty(f"topic {topic.name} has records; a source needs an empty topic", topic=topic.name)


class ReplayedSource(NamedTuple):
    """A source as the replayed frames left it."""

    definition: SourceDefinition
    fence: int = 0
    holder: str = ""
    lease_ms: int = 0
    control: ControlState = NO_CONTROL
    stop: SourceStop | None = None
