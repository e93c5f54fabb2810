"""AppendStream by functions, on the own wire: as its tasks answer the same steps on gRPC's own core."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eddyline.core.server.server import make_server
from eddyline.v1.log_pb2 import AppendStart, AppendStreamRequest
from tests.store.rpc.requests import append_of, append_step, appends_step, keyed
from tests.support.store.served import Gate, answers_of, served_store, until

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pytest

    from eddyline.v1.log_pb2 import AppendBatch, AppendOutcome, AppendStreamResponse
    from tests.support.store.served import ServedStore


def versioned(number: int) -> AppendBatch:
    """An append that waits for the fold, which may refuse it."""
    append = append_of(keyed("v", str(number)))
    append.expected_versions.add(key=b"v", version=number.to_bytes(8, "big") if number else b"")
    return append


APPENDS = st.one_of(
    st.integers(0, 3).map(lambda number: append_of(keyed(f"k{number}", "x"))),
    st.integers(0, 2).map(lambda number: append_of(keyed("once", "x"), key=f"key{number}")),
    st.integers(0, 2).map(versioned),
    st.integers(0, 4).map(lambda head: append_of(keyed("h", "x"), head=head)),
    st.just(append_of(keyed("", "no key"))),
)
STEPS = st.lists(
    st.one_of(
        APPENDS.map(lambda append: AppendStreamRequest(append=append)),
        st.lists(APPENDS, max_size=4).map(lambda appends: appends_step(*appends)),
    ),
    max_size=40,
)


def outcomes(answers: Sequence[AppendStreamResponse]) -> list[list[tuple[object, ...]]]:
    """What does not depend on time."""
    return [[_outcome(answer), *map(_outcome, answer.outcomes)] for answer in answers]


def _outcome(one: AppendStreamResponse | AppendOutcome) -> tuple[object, ...]:
    return one.first_seq, one.last_seq, one.deduplicated, one.error.reason


async def test_steps_are_answered_alike_on_both_wires(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = make_server.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "wire", "grpc")
    async with served_store(tmp_path / "grpc", topics_max=0) as other:
        monkeypatch.setitem(defaults, "wire", "own")
        async with served_store(tmp_path / "own", topics_max=0) as own:
            await _compare(own, other)


async def _compare(own: ServedStore, other: ServedStore) -> None:
    loop = asyncio.get_running_loop()
    numbers = iter(range(1_000_000))

    @settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(steps=STEPS, independent=st.booleans())
    def compare(steps: list[AppendStreamRequest], independent: bool) -> None:
        topic = f"t{next(numbers)}"
        first = AppendStreamRequest(start=AppendStart(topic=topic, independent=independent))

        async def answered(store: ServedStore) -> tuple[object, ...]:
            await store.create(topic)
            answers, reason = await answers_of(store.log.AppendStream(iter([first, *steps])))
            return outcomes(answers), await store.head(topic), reason

        async def both() -> None:
            *mine, my_reason = await answered(own)
            *theirs, their_reason = await answered(other)
            assert mine == theirs
            # gRPC's client forgets how a call ended that it was still sending to
            assert len({my_reason, their_reason} - {"NOT_READY"}) <= 1

        asyncio.run_coroutine_threadsafe(both(), loop).result(60)

    await asyncio.to_thread(compare)


async def test_a_stalled_disk_holds_the_client_back_and_no_step_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    defaults = make_server.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "wire", "own")
    disk = Gate()
    async with served_store(tmp_path / "store", disk=disk) as store:
        await store.create("kv")
        disk.close()
        start = AppendStreamRequest(start=AppendStart(topic="kv"))
        call = store.log.AppendStream(iter([start, *(append_step(keyed("k", str(one))) for one in range(100))]))
        await until(lambda: disk.job_count > 0)
        disk.open()
        answers, reason = await answers_of(call)
        assert ([answer.last_seq for answer in answers], reason) == (list(range(1, 101)), "")
