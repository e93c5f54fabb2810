"""Traces through the store: of an append and of a source's batch, until visible or failed, and told to followers."""

from __future__ import annotations

import errno
from random import Random
from typing import TYPE_CHECKING

import pytest

from eddyline.core.errors import CommitUnknown
from eddyline.core.model.source import SourceDefinition
from eddyline.core.model.topic import Durability
from eddyline.core.records.batch import Batch
from eddyline.core.store_link.protocol import FollowItem
from eddyline.core.telemetry import names as telemetry
from eddyline.core.telemetry.trace_context import SeqTrace, parse_traceparent
from eddyline.core.telemetry.tracing import Tracer
from eddyline.store.write import traces as commit_traces
from tests.support.manual_clock import ManualClock
from tests.support.sim.faulty_fs import FaultyFs
from tests.support.sim.fs import SimFs
from tests.support.store.simulated import append, kv_topic, log_topic, puts, rows, sim_store

if TYPE_CHECKING:
    from eddyline.core.store_link.protocol import AppendResult
    from eddyline.core.telemetry.tracing import EndedSpan
    from eddyline.store.shard.shard import Shard

GIVEN = f"00-{7:032x}-{9:016x}-01"


def tracer(ratio: float = 1e-12) -> Tracer:
    """A tracer that samples only on request."""
    return Tracer(ratio, clock=ManualClock(), rng=Random(1))


def only(made: Tracer) -> EndedSpan:
    (span,) = made.drain()
    return span


async def followed(link: Shard, topic: str) -> list[tuple[SeqTrace, ...]]:
    """The traces of a topic's items, from its first record to its head."""
    told: list[tuple[SeqTrace, ...]] = []
    async with link.follow() as follow:
        await follow.add(1, topic, after_seq=0)
        await follow.grant(1 << 20)
        async for event in follow:
            if isinstance(event, FollowItem):
                told.append(event.traces)
                if event.next_after_seq == event.head_seq:
                    break
    return told


@pytest.mark.parametrize("is_kv", [False, True])
async def test_append_is_traced_from_its_stage_until_it_is_visible(is_kv: bool) -> None:
    made = tracer()
    async with sim_store(tracer=made) as link:
        epoch = await (kv_topic(link, "t") if is_kv else log_topic(link, "t"))
        await append(link, "t", puts(("a", "1")) if is_kv else rows("1"))
        batch = puts(("b", "2"), ("c", "3")) if is_kv else rows("2", "3")
        await append(link, "t", batch, traceparent=GIVEN)
        span = only(made)
        assert (span.name, span.error) == (telemetry.SPAN_STORE_COMMIT, "")
        assert [event.name for event in span.events] == [telemetry.EVENT_DURABLE]
        assert dict(span.attributes) == {
            telemetry.ATTRIBUTE_TOPIC: "t",
            telemetry.ATTRIBUTE_EPOCH: epoch,
            telemetry.ATTRIBUTE_FIRST_SEQ: 2,
            telemetry.ATTRIBUTE_RECORDS: 2,
        }
        assert span.parent == parse_traceparent(GIVEN)
        told = [trace for traces in await followed(link, "t") for trace in traces]
        assert told == [SeqTrace(3, span.context.header())]


async def test_sources_batch_is_traced_if_its_ingest_sampled_it() -> None:
    made = tracer(1.0)
    async with sim_store(tracer=made) as link:
        await kv_topic(link)
        await link.put_source(SourceDefinition("s", "kv", bucket="b"))
        fence = (await link.acquire_lease("s", holder="h", lease_ms=60_000)).fence

        async def applied(previous: bytes, new: bytes, batch: Batch | None, traceparent: str) -> AppendResult:
            return await link.apply_batch(
                "s", fence=fence, previous=previous, new=new, batch=batch, traceparent=traceparent
            )

        batch = Batch.from_rows([row._replace(version=b"12345678") for row in puts(("k", "v")).to_rows()])
        await applied(b"", b"1", batch, "")
        assert made.drain() == []
        await applied(b"1", b"2", None, GIVEN)
        assert made.drain() == []
        await applied(b"2", b"3", batch, GIVEN)
        assert only(made).parent == parse_traceparent(GIVEN)
        await applied(b"2", b"3", batch, GIVEN)
        assert made.drain() == []


async def test_append_by_chance_begins_a_trace() -> None:
    made = tracer(1.0)
    async with sim_store(tracer=made) as link:
        await log_topic(link)
        await append(link, "log", rows("x"))
        assert only(made).parent is None


async def test_span_of_a_failed_append_has_the_reason_and_followers_do_not_get_it() -> None:
    made, fs = tracer(), FaultyFs(SimFs())
    async with sim_store(fs, tracer=made) as link:
        await log_topic(link, durability=Durability.FSYNC)
        fs.next_fault("fdatasync", error=errno.EIO)
        with pytest.raises(CommitUnknown):
            await append(link, "log", rows("x"), traceparent=GIVEN)
        assert only(made).error == CommitUnknown.reason


async def test_off_asks_nothing_and_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("staged", "durable", "visible"):
        monkeypatch.setattr(commit_traces.CommitTraces, name, None)  # calling one would fail
    async with sim_store() as link:
        await log_topic(link)
        await append(link, "log", rows("x"), traceparent=GIVEN)
        assert await followed(link, "log") == [()]
