"""Several appends in one message of AppendStream: each has its own outcome, and all go to the disk at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eddyline.core.codec.row_split import STEP_BYTES_MAX
from eddyline.core.store_link.append_steps import STEP_APPENDS_MAX
from eddyline.v1 import topic_pb2
from eddyline.v1.log_pb2 import AppendBatch, AppendStart, AppendStreamRequest, AppendStreamResponse, ReadRecordsRequest
from eddyline.v1.types_pb2 import Record, RecordBatch
from tests.store.rpc.requests import append_of, append_step, appends_step, independent_start, keyless
from tests.support.store.served import answers_of, served_store

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.support.store.served import ServedStore

LOG = topic_pb2.TOPIC_KIND_LOG
START = AppendStreamRequest(start=AppendStart(topic="log"))
CONFLICT = append_of(keyless("other"), key="once")
FAILURES = [
    pytest.param(AppendBatch(), "INVALID_ARGUMENT", id="no batch"),
    pytest.param(append_of(keyless("1"), head=99), "HEAD_MISMATCH", id="condition"),
    pytest.param(append_of(Record(data=b"x", seq=4)), "INVALID_ARGUMENT", id="seq"),
    pytest.param(append_of(keyless("x"), key="k" * 129), "INVALID_ARGUMENT", id="long key"),
    pytest.param(CONFLICT, "IDEMPOTENCY_CONFLICT", id="conflict"),
]


async def stored(store: ServedStore, topic: str = "log") -> list[str]:
    """The data of a topic's records."""
    read = await store.log.ReadRecords(ReadRecordsRequest(topic=topic, limit=10_000))
    return [record.data.decode() for item in read.items for record in item.rows.records]


def groups_of(store: ServedStore) -> int:
    """Group commits so far."""
    return sum(store.link.measured().measures.commit_s.now().counts)


def ranges(answer: AppendStreamResponse) -> list[tuple[int, int]]:
    return [(outcome.first_seq, outcome.last_seq) for outcome in answer.outcomes]


def outcomes(answers: Sequence[AppendStreamResponse]) -> list[tuple[int, int, bool, str]]:
    """First and last seq, `deduplicated` and reason of each append, whichever way it was sent."""
    return [
        (one.first_seq, one.last_seq, one.deduplicated, one.error.reason)
        for answer in answers
        for one in answer.outcomes or [answer]
    ]


async def test_one_answer_has_the_outcomes_of_all_in_order(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        made = await store.create("log", LOG)
        steps = [
            START,
            append_step(keyless("a")),
            appends_step(append_of(keyless("b"), keyless("c")), append_of(keyless("d"))),
            appends_step(append_of(keyless("e"))),
        ]
        answers, ended = await answers_of(store.log.AppendStream(iter(steps)))
        assert ended == ""
        assert [answer.appends_max for answer in answers] == [STEP_APPENDS_MAX, 0, 0]
        assert (answers[0].first_seq, ranges(answers[0])) == (1, [])
        assert [ranges(answer) for answer in answers[1:]] == [[(2, 3), (4, 4)], [(5, 5)]]
        assert {answer.epoch for answer in answers} == {made.epoch}
        assert all(outcome.ts_ms for answer in answers[1:] for outcome in answer.outcomes)
        assert await stored(store) == list("abcde")


async def test_appends_of_a_message_go_to_the_disk_in_one_group(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("log", LOG)
        groups = groups_of(store)
        step = appends_step(*(append_of(keyless(str(number))) for number in range(STEP_APPENDS_MAX)))
        answers, ended = await answers_of(store.log.AppendStream(iter([START, step])))
        assert (len(answers), ended) == (1, "")
        assert ranges(answers[0]) == [(seq, seq) for seq in range(1, STEP_APPENDS_MAX + 1)]
        assert groups_of(store) == groups + 1


@pytest.mark.parametrize(("bad", "reason"), FAILURES)
async def test_first_failure_in_a_message_ends_the_stream_after_the_outcomes_before_it(
    tmp_path: Path, bad: AppendBatch, reason: str
) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("log", LOG)
        steps = [
            START,
            appends_step(append_of(keyless("1"), key="once"), append_of(keyless("2")), bad, append_of(keyless("3"))),
            append_step(keyless("4")),
        ]
        answers, ended = await answers_of(store.log.AppendStream(iter(steps)))
        assert ended == reason
        assert [ranges(answer) for answer in answers] == [[(1, 1), (2, 2)]]
        assert await stored(store) == ["1", "2"]


@pytest.mark.parametrize(("bad", "reason"), FAILURES)
async def test_independent_append_that_fails_is_answered_with_its_error_alone(
    tmp_path: Path, bad: AppendBatch, reason: str
) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("log", LOG)
        steps = [
            independent_start("log"),
            AppendStreamRequest(append=bad) if reason != "IDEMPOTENCY_CONFLICT" else append_step(),
            appends_step(append_of(keyless("1"), key="once"), bad, append_of(keyless("2"))),
            append_step(keyless("3")),
        ]
        answers, ended = await answers_of(store.log.AppendStream(iter(steps)))
        assert (ended, len(answers)) == ("", 3)
        assert answers[0].appends_max == STEP_APPENDS_MAX
        assert answers[0].error.reason == (reason if reason != "IDEMPOTENCY_CONFLICT" else "INVALID_ARGUMENT")
        assert [outcome.error.reason for outcome in answers[1].outcomes] == ["", reason, ""]
        failed = answers[1].outcomes[1]
        assert (failed.first_seq, failed.last_seq, failed.ts_ms) == (0, 0, 0)
        assert failed.error.message
        assert failed.error.code in {3, 6, 10}
        assert await stored(store) == ["1", "2", "3"]


async def test_error_of_an_append_has_the_metadata_of_its_status(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("log", LOG)
        steps = [independent_start("log"), appends_step(append_of(keyless("1")), append_of(keyless("2"), head=7))]
        answers, _ = await answers_of(store.log.AppendStream(iter(steps)))
        error = answers[0].outcomes[1].error
        assert (error.code, error.metadata["headSeq"]) == (10, "1")


@pytest.mark.parametrize("start", [START, independent_start("log")], ids=["in order", "independent"])
@pytest.mark.parametrize(
    ("step", "reason"),
    [
        pytest.param(appends_step(), "INVALID_ARGUMENT", id="none"),
        pytest.param(appends_step(*[append_of(keyless("x"))] * (STEP_APPENDS_MAX + 1)), "INVALID_ARGUMENT", id="many"),
        pytest.param(
            appends_step(*[append_of(Record(data=bytes(STEP_BYTES_MAX // 2)))] * 2), "BATCH_TOO_LARGE", id="large"
        ),
        pytest.param(START, "STREAM_ORDER", id="second start"),
    ],
)
async def test_message_that_is_not_taken_ends_every_stream_and_nothing_of_it_is_stored(
    tmp_path: Path, start: AppendStreamRequest, step: AppendStreamRequest, reason: str
) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("log", LOG)
        answers, ended = await answers_of(store.log.AppendStream(iter([start, append_step(keyless("1")), step])))
        assert (len(answers), ended) == (1, reason)
        assert await stored(store) == ["1"]


async def test_repeats_in_one_message_and_over_messages_have_the_first_ones_outcome(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("log", LOG)
        step = appends_step(
            append_of(keyless("1"), key="a"), append_of(keyless("2"), key="b"), append_of(keyless("1"), key="a")
        )
        for round_of in range(2):
            answers, ended = await answers_of(store.log.AppendStream(iter([START, step])))
            assert ended == ""
            again = bool(round_of)
            assert outcomes(answers) == [(1, 1, again, ""), (2, 2, again, ""), (1, 1, True, "")]
        assert await stored(store) == ["1", "2"]


APPENDS = st.lists(
    st.builds(
        append_of,
        st.sampled_from([keyless("a"), keyless("b"), Record(data=b"c", seq=1)]),
        key=st.sampled_from(["", "", "k1", "k2"]),
        head=st.sampled_from([None, None, None, 0, 1, 2, 3]),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(appends=APPENDS, cuts=st.lists(st.integers(1, 4), min_size=12, max_size=12))
async def test_outcomes_do_not_depend_on_which_appends_share_a_message(
    tmp_path_factory: pytest.TempPathFactory, appends: list[AppendBatch], cuts: list[int]
) -> None:
    together, left = [], list(appends)
    for size in cuts:
        if left:
            together.append(appends_step(*left[:size]))
            del left[:size]
    alone = [AppendStreamRequest(append=append) for append in appends]
    async with served_store(tmp_path_factory.mktemp("several") / "store") as store:
        told = []
        for name, steps in (("one", alone), ("many", together)):
            await store.create(name, LOG)
            answers, ended = await answers_of(store.log.AppendStream(iter([independent_start(name), *steps])))
            assert ended == ""
            told.append((outcomes(answers), await stored(store, name)))
        assert told[0] == told[1]


async def test_message_with_rows_of_more_than_the_split_size_is_whole(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("log", LOG)
        batch = RecordBatch(records=[keyless("x" * 100) for _ in range(200)])
        steps = [START, appends_step(AppendBatch(rows=batch), AppendBatch(rows=batch))]
        answers, ended = await answers_of(store.log.AppendStream(iter(steps)))
        assert ([ranges(answer) for answer in answers], ended) == ([[(1, 200), (201, 400)]], "")
