"""Steps put together from serialized appends are protobuf's own bytes; outcomes come back as they were."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from eddyline.core.errors import Code, EddylineError, HeadMismatch, IdempotencyConflict, Throttled
from eddyline.core.store_link.append_steps import (
    STEP_ENVELOPE_BYTES,
    outcomes_from_pb,
    several_to_pb,
    single_to_pb,
    step_of_one,
    step_of_several,
)
from eddyline.core.store_link.protocol import AppendResult
from eddyline.v1.log_pb2 import AppendBatch, AppendBatches, AppendError, AppendStreamRequest, AppendStreamResponse
from eddyline.v1.types_pb2 import Record, RecordBatch

APPENDS = st.builds(
    lambda data, key: AppendBatch(rows=RecordBatch(records=[Record(data=data)]), idempotency_key=key),
    st.sampled_from([b"", b"x", b"y" * 120, b"z" * 130, b"long" * 5_000]),
    st.sampled_from(["", "key"]),
)
SEQS = st.integers(0, 1 << 50)
RESULTS = st.builds(AppendResult, SEQS, SEQS, st.just(7), st.integers(0, 1 << 40), st.booleans())
ERRORS = st.sampled_from(
    [HeadMismatch("moved", headSeq=9), IdempotencyConflict("other"), Throttled("slower", retryAfterMs=20)]
)


def told(outcome: AppendResult | EddylineError) -> object:
    if isinstance(outcome, EddylineError):
        return type(outcome), outcome.code, outcome.message, outcome.metadata
    return outcome


@given(append=APPENDS)
def test_step_of_one_is_what_protobuf_writes(append: AppendBatch) -> None:
    assert step_of_one(append.SerializeToString()) == AppendStreamRequest(append=append).SerializeToString()


@given(appends=st.lists(APPENDS, min_size=1, max_size=20))
def test_step_of_several_is_what_protobuf_writes(appends: list[AppendBatch]) -> None:
    serialized = [append.SerializeToString() for append in appends]
    step = step_of_several(serialized)
    assert step == AppendStreamRequest(appends=AppendBatches(appends=appends)).SerializeToString()
    assert len(step) <= sum(map(len, serialized)) + STEP_ENVELOPE_BYTES * (len(appends) + 1)


@given(outcomes=st.lists(RESULTS | ERRORS, min_size=1, max_size=20))
def test_outcomes_of_several_come_back(outcomes: list[AppendResult | EddylineError]) -> None:
    answer = AppendStreamResponse.FromString(several_to_pb(outcomes).SerializeToString())
    assert list(map(told, outcomes_from_pb(answer))) == list(map(told, outcomes))


@given(outcome=RESULTS | ERRORS)
def test_outcome_of_a_single_append_comes_back(outcome: AppendResult | EddylineError) -> None:
    answer = AppendStreamResponse.FromString(single_to_pb(outcome).SerializeToString())
    assert list(map(told, outcomes_from_pb(answer))) == [told(outcome)]


def test_error_of_a_newer_server_keeps_code_and_reason() -> None:
    (error,) = outcomes_from_pb(AppendStreamResponse(error=AppendError(code=9, reason="NEW_ONE", message="what")))
    assert isinstance(error, EddylineError)
    assert (error.code, error.reason, error.message) == (Code.FAILED_PRECONDITION, "NEW_ONE", "what")
    (error,) = outcomes_from_pb(AppendStreamResponse(error=AppendError(code=77, reason="NEW_ONE")))
    assert isinstance(error, EddylineError)
    assert error.code is Code.INTERNAL
