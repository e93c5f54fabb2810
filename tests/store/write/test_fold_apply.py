"""The applier: small batches at once on the loop, all others on the fold's thread, in order either way."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eddyline.core.model.topic import Kind, TopicConfig
from eddyline.store.log.idempotency_keys import KeyBudget
from eddyline.store.log.topic import Topic
from eddyline.store.stats import ShardMetrics
from eddyline.store.storage.wal.frame import FrameType, control_body
from eddyline.store.write.fold_apply import (
    INLINE_BYTES_MAX,
    INLINE_ENTRIES_MAX,
    STALL_PAUSE_S,
    FoldApplier,
)
from eddyline.store.write.staged import CommitFrame, StagedControl
from tests.support.manual_clock import START_MS, ManualClock, settle
from tests.support.sim.fold import SimFold
from tests.support.sim.worker import InlineWorker
from tests.support.store.simulated import puts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence


@dataclass
class Line:
    """An applier of one topic; `published` and `failed` have the last seqs of frames."""

    clock: ManualClock = field(default_factory=ManualClock)
    fold: SimFold = field(default_factory=lambda: SimFold(0))
    worker: InlineWorker = field(default_factory=InlineWorker)
    published: list[int] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)
    head_seq: int = 0

    def __post_init__(self) -> None:
        self.topic = Topic(
            name="kv", topic_id=7, kind=Kind.KV, config=TopicConfig(), create_ts_ms=START_MS, key_budget=KeyBudget()
        )
        self.applier = FoldApplier(
            self.fold,
            self.worker,
            self.clock,
            publish=self._on_published,
            on_failure=self._on_failure,
            measures=ShardMetrics(),
        )

    def _on_published(self, frame: CommitFrame) -> None:
        assert self.fold.applied(self.topic.id) >= frame.last_seq, "visible after it is applied"
        self.published.append(frame.last_seq)

    def _on_failure(self, frames: Sequence[CommitFrame], _: Exception) -> None:
        self.failed += [frame.last_seq for frame in frames]

    def frame(self, count: int = 1, value: str = "v") -> CommitFrame:
        """The next committed frame, of `count` records."""
        frame = CommitFrame(self.topic, None)
        first_seq, self.head_seq = self.head_seq + 1, self.head_seq + count
        frame.batch = puts(*((f"k{number}", value) for number in range(count))).with_seqs(first_seq, START_MS)
        frame.bytes, frame.record_count, frame.last_seq = frame.batch.nbytes, count, self.head_seq
        return frame

    def deletion(self) -> CommitFrame:
        """The topic's deletion."""
        body = control_body(FrameType.TOPIC_DELETE, self.topic.id, {}, ts_ms=START_MS)
        done = asyncio.get_running_loop().create_future()
        return CommitFrame(self.topic, StagedControl(body, done=done, on_commit=lambda _: None, topic=self.topic))


@asynccontextmanager
async def line() -> AsyncIterator[Line]:
    one = Line()
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(one.applier.run())
        await settle()
        yield one
        running.cancel()


async def test_a_few_records_are_visible_before_add_returns() -> None:
    async with line() as one:
        one.applier.add([one.frame(), one.frame(2)])
        assert one.published == [1, 3]
        assert one.fold.applied(7) == 3
        assert (one.applier.lag_records, one.applier.lag_bytes) == (0, 0)
        await one.applier.drain()


@pytest.mark.parametrize(("count", "value"), [(INLINE_ENTRIES_MAX + 1, "v"), (2, "x" * INLINE_BYTES_MAX)])
async def test_more_records_go_to_the_thread(count: int, value: str) -> None:
    async with line() as one:
        one.applier.add([one.frame(count, value)])
        assert one.published == []
        await one.applier.drain()
        assert one.published == [count]


async def test_a_few_records_wait_for_those_that_are_with_the_thread() -> None:
    async with line() as one:
        one.applier.add([one.frame(INLINE_ENTRIES_MAX + 1)])
        await asyncio.sleep(0)
        one.applier.add([one.frame()])
        assert one.published == []
        await one.applier.drain()
        assert one.published == [INLINE_ENTRIES_MAX + 1, INLINE_ENTRIES_MAX + 2]


async def test_a_few_records_wait_for_other_work_of_the_thread() -> None:
    async with line() as one:
        read = one.worker.submit(lambda: one.fold.applied(7))
        one.applier.add([one.frame()])
        assert one.published == []
        await one.applier.drain()
        assert (await read, one.published) == (0, [1])


async def test_a_deletion_goes_to_the_thread() -> None:
    async with line() as one:
        one.applier.add([one.frame()])
        one.applier.add([one.deletion()])
        assert one.fold.applied(7) == 1
        await one.applier.drain()
        assert one.fold.applied(7) == 0


async def test_a_stalled_write_is_repeated_by_the_task_and_later_frames_wait() -> None:
    async with line() as one:
        one.fold.stall(2)
        one.applier.add([one.frame()])
        assert one.applier.stalled
        one.applier.add([one.frame()])
        await settle()
        assert one.published == []
        await one.clock.pass_time(STALL_PAUSE_S)
        assert one.published == [1, 2]
        assert not one.applier.stalled


async def test_after_a_failure_on_the_loop_nothing_is_applied() -> None:
    async with line() as one:
        one.applier.add([one.frame()])
        one.fold.fail()
        for _ in range(2):
            one.applier.add([one.frame()])
        await one.applier.drain()
        assert (one.published, one.failed) == ([1], [2, 3])


async def test_nothing_is_applied_before_the_applier_runs() -> None:
    one = Line()
    one.applier.add([one.frame()])
    assert one.published == []
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(one.applier.run())
        await one.applier.drain()
        running.cancel()
    assert one.published == [1]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(st.sampled_from([0, 1, 3, INLINE_ENTRIES_MAX + 1]), min_size=1, max_size=3)),
        st.tuples(st.just("turn"), st.integers(1, 8)),
        st.tuples(st.just("stall"), st.integers(1, 3)),
        st.tuples(st.just("read"), st.just(0)),
        st.tuples(st.just("pass"), st.just(0)),
        st.tuples(st.just("fail"), st.just(0)),
    ),
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(steps=STEPS)
async def test_frames_are_published_in_order_each_after_its_write(steps: list[tuple[str, list[int] | int]]) -> None:
    added: list[int] = []
    async with line() as one:
        for step, value in steps:
            if isinstance(value, list):
                frames = [one.frame(count) for count in value]
                added += [frame.last_seq for frame in frames]
                one.applier.add(frames)
            elif step == "turn":
                await _turns(value)
            elif step == "stall":
                one.fold.stall(value)
            elif step == "read":
                one.worker.submit(lambda: one.fold.applied(7))
            elif step == "pass":
                await one.clock.pass_time(STALL_PAUSE_S)
            else:
                one.fold.fail()
            assert one.published + one.failed == added[: len(one.published) + len(one.failed)]
        await one.clock.pass_time(60)
        await one.applier.drain()
    assert one.published + one.failed == added
    assert (one.applier.lag_records, one.applier.lag_bytes) == (0, 0)


async def _turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_frames_left_when_the_applier_ends_are_failed() -> None:
    async with line() as one:
        one.applier.add([one.frame(INLINE_ENTRIES_MAX + 1)])
    assert one.failed == [INLINE_ENTRIES_MAX + 1]
    one.applier.add([one.frame()])
    assert one.published == [], "its fold may be closed"
