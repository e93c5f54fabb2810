"""The audit of a live source's stream: did messages leave with no trace behind them?

The consumer gets no notice of a purge, an expiry without markers or an eviction. So while a source is LIVE, the audit
reads the stream's figures at a low rate and compares them with those of the audit before. Figures that newer writes
cannot explain lead to a comparison of key sets; the source resyncs only where keys are really gone.

Key sets do not reveal a message that left before an older one of its key (the stream API's MSG.DELETE, a time to live of
one message): NATS then has the older one as the newest. So of a bucket that keeps more than one revision of a key,
figures that neither newer writes nor key sets explain lead to a comparison of values: the newest message of every key
with the fold. So does the first audit of an attempt, since none ran before it; attempts share one pace. The source copies
nothing meanwhile: some 20 s with a million keys.

Reasons for a comparison:
* fewer subjects, or fewer messages than at the audit before;
* the stream is empty, or the oldest message of then is past its age by now (without markers), or was evicted by a limit;
* messages left, in a way that newer revisions of their keys explain. For hot keys that is the normal case; but a key that
  left while another one came looks the same. So this too is compared, rarely.

An audit that finds other settings of the stream ends the attempt, which classified gaps by the old ones.

I1: figures are compared only once everything up to their last revision is applied, and become the base of the next audit:
a key that leaves later shows in that one, one that left before in this one's comparison. A finding stays until key sets
were compared.
I2: a comparison of either kind costs at most a twentieth of the time, whatever the bucket holds.
Failure: a request without an answer is repeated soon; while disconnected the consumer is lost, and no audit runs.
Threading: event loop.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final

from eddyline.core.errors import EddylineError
from eddyline.ingest.copy.forward import retried
from eddyline.ingest.resync.resync import vanished_keys

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

    from eddyline.core.runtime.clock import Clock
    from eddyline.core.store_link.protocol import StoreLink
    from eddyline.ingest.nats.jetstream import JetStream
    from eddyline.ingest.nats.stream import Stream

AUDIT_INTERVAL_S: Final = 10.0
"""Other consumers of NATS never audit: their view would stay wrong without notice. One STREAM.INFO of 1 KiB a source each 10
s: 1 000 sources send NATS 100 requests a second, of some 50 000 that it answers."""
RETRY_S: Final = 2.0
"""Delay before an audit without an answer is repeated. If the server of our consumer is cut off from its cluster, the
consumer's heartbeats go on, and only unanswered audits make the connection leave that server."""
DOUBT_AUDITS: Final = 6
"""A change that newer writes explain is compared all the same, each minute: a hundredth of the time where it takes 0.6 s, as
100 000 keys do."""
SHARE: Final = 20
"""Pause between two comparisons, in multiples of what the last one took; five times more where there is only doubt."""
SHARE_DOUBT: Final = 5 * SHARE


class AuditFinding(IntEnum):
    """Outcome of an audit, by gravity: no message left; perhaps only superseded ones; or others."""

    STILL = 0
    DOUBT = 1
    LOSS = 2


def compare_figures(previous: Stream, current: Stream) -> AuditFinding:
    """Compare the figures of two audits of one stream; everything up to the last revision of `current` is applied."""
    if current.subject_count < previous.subject_count or current.message_count < previous.message_count:
        return AuditFinding.LOSS
    removed = previous.message_count + (current.last_revision - previous.last_revision) - current.message_count
    if removed <= 0:
        return AuditFinding.STILL
    if current.message_count == 0:
        return AuditFinding.LOSS  # the newest message of a key is never superseded
    oldest_ns = previous.first_ns if previous.message_count else previous.server_ns
    if 0 < previous.max_age_ns <= current.server_ns - oldest_ns and not previous.expiry_markers:
        return AuditFinding.LOSS
    if not current.discard_new and current.limited and current.first_revision > previous.first_revision:
        return AuditFinding.LOSS
    return AuditFinding.DOUBT


class ComparisonPace:
    """Pace of comparisons of one kind, and the gravest finding that waits for the next."""

    def __init__(self, now_s: float, doubt_s: float, finding: AuditFinding = AuditFinding.STILL) -> None:
        self._doubt_s = doubt_s
        self._loss_at_s = now_s
        self._doubt_at_s = now_s + doubt_s
        self.finding = finding

    def is_due(self, now_s: float) -> bool:
        """Whether the waiting finding may be compared now."""
        if self.finding is AuditFinding.STILL:
            return False
        return now_s >= (self._loss_at_s if self.finding is AuditFinding.LOSS else self._doubt_at_s)

    def compared(self, started_s: float, now_s: float) -> None:
        """Record that a comparison ran."""
        self.finding = AuditFinding.STILL
        self._loss_at_s = now_s + SHARE * (now_s - started_s)
        self._doubt_at_s = now_s + max(self._doubt_s, SHARE_DOUBT * (now_s - started_s))


def _ignore(_: Stream) -> None:
    """Default observer."""


class StreamAudit:
    """Audits of one attempt at a source. `base` = the stream of the resume check; `resyncs` as for resyncs.

    `changed` compares values: given a stream and the revision up to which all is applied, it returns the number of keys
    whose newest message differs from the fold; `values` is the pace of that, which outlives the attempt: each attempt
    begins with a comparison, and a NATS that comes and goes makes many. `resumed` = the source had a position before.
    """

    def __init__(
        self,
        base: Stream,
        *,
        jetstream: JetStream,
        link: StoreLink,
        topic: str,
        resyncs: asyncio.Semaphore,
        clock: Clock,
        changed: Callable[[Stream, int], Awaitable[int]],
        values: ComparisonPace,
        resumed: bool = False,
        audit_interval_s: float = AUDIT_INTERVAL_S,
        on_audit: Callable[[Stream], None] = _ignore,
    ) -> None:
        """`on_audit` is called with the stream of each audit."""
        assert audit_interval_s > 0
        self._on_audit = on_audit
        self._base = base
        self._jetstream = jetstream
        self._link = link
        self._topic = topic
        self._resyncs = resyncs
        self._clock = clock
        self._audit_interval_s = audit_interval_s
        now_s = clock.monotonic_s()
        self._next_audit_s = now_s + audit_interval_s
        self._changed = changed
        self._keys = ComparisonPace(now_s, DOUBT_AUDITS * audit_interval_s)
        self._values = values
        if resumed:
            values.finding = AuditFinding.LOSS
        self._observed: Stream | None = None
        self.values_differ = False
        """True = the reason to resync is a comparison of values."""

    @property
    def wait_s(self) -> float:
        """Time until `check` has something to do, where nothing is applied meanwhile."""
        return max(self._next_audit_s - self._clock.monotonic_s(), 0.0)

    @property
    def is_idle(self) -> bool:
        """True = `check` would do nothing now: nothing is due, and nothing observed waits for a position."""
        return self._observed is None and self.wait_s > 0

    async def check(self, at_revision: int, *, drained: bool) -> str:
        """Audit, and compare what is due, everything up to `at_revision` being applied; returns why to resync, "" = no need.

        `drained` = every received message is applied. While NATS or the store does not answer, the audit is put off.

        Raises:
            BucketNotFound, and what the store's reads raise where a retry is of no use.
        """
        due = self.wait_s == 0
        if self._observed is None and not due:
            return ""
        try:
            if self._observed is None:
                self._postpone()
                observed = self._observed = await self._jetstream.refresh(self._base)
                self._on_audit(observed)
                if observed.created_ns != self._base.created_ns or observed.last_revision < at_revision:
                    return "the stream was replaced"
                if observed.settings != self._base.settings:
                    return f"settings of {observed.origin} were changed"
            elif due:
                self._postpone()
                if drained and at_revision < self._observed.last_revision:
                    return "messages were removed from the bucket before they were read"
            if at_revision < self._observed.last_revision:
                return ""
            return await self._compare(self._observed, at_revision)
        except EddylineError as error:
            if not retried(error):
                raise
            self._next_audit_s = min(self._next_audit_s, self._clock.monotonic_s() + RETRY_S)
            return ""

    async def _compare(self, observed: Stream, at_revision: int) -> str:
        self._observed = None
        finding = compare_figures(self._base, observed)
        self._keys.finding = max(self._keys.finding, finding)
        self._values.finding = max(self._values.finding, finding)
        self._base = observed
        if not observed.bucket:
            return ""  # a stream without a bucket has no fold
        started_s = self._clock.monotonic_s()
        if self._keys.is_due(started_s):
            async with self._resyncs:
                gone = await vanished_keys(self._jetstream, observed, self._link.range_entries(self._topic))
            self._keys.compared(started_s, self._clock.monotonic_s())
            if gone:
                return f"{len(gone)} keys were removed from the bucket without a message"
        started_s = self._clock.monotonic_s()
        if observed.history == 1 or not self._values.is_due(started_s):
            return ""  # with history 1 a key has no older message
        async with self._resyncs:
            changed = await self._changed(observed, at_revision)
        self._values.compared(started_s, self._clock.monotonic_s())
        self.values_differ = changed > 0
        return f"{changed} keys have an older value, since their newest message was removed" if changed else ""

    def _postpone(self) -> None:
        self._next_audit_s = self._clock.monotonic_s() + self._audit_interval_s
