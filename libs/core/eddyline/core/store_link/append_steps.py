"""Steps and answers of an append stream: encoded appends to a step's bytes, outcomes to an answer and back.

A step is put together from appends that are serialized already, since protobuf would copy and serialize each once more. A
stream's answer repeats the fields of one outcome, so that a single append needs no message inside the message; both forms
of an answer are the same values here.
Threading: pure functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from eddyline.core.errors import EddylineError
from eddyline.core.store_link.protocol import AppendResult
from eddyline.core.transport.status import ErrorParts, from_parts, to_parts
from eddyline.v1 import log_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

    AppendOutcome: TypeAlias = AppendResult | EddylineError

STEP_APPENDS_MAX: Final = 256
"""Most appends in one message. At 64 a message costs the server a tenth of its appends, at 256 a fortieth; the memory of the
16 messages that a stream reads ahead stays below 16 MiB with appends of 1 KiB."""
STEP_ENVELOPE_BYTES: Final = 8
"""Most bytes of an append's tag and length in a step."""

_SINGLE_TAG: Final = bytes((log_pb2.AppendStreamRequest.APPEND_FIELD_NUMBER << 3 | 2,))
_SEVERAL_TAG: Final = bytes((log_pb2.AppendStreamRequest.APPENDS_FIELD_NUMBER << 3 | 2,))
_EACH_TAG: Final = bytes((log_pb2.AppendBatches.APPENDS_FIELD_NUMBER << 3 | 2,))

_SHORT: Final = [bytes((number,)) for number in range(0x80)]


def step_of_one(append: bytes) -> bytes:
    """Return the step of a serialized AppendBatch: an AppendStreamRequest with `append`."""
    return b"".join((_SINGLE_TAG, _length(len(append)), append))


def step_of_several(appends: Sequence[bytes]) -> bytes:
    """Return the step of serialized AppendBatches: an AppendStreamRequest with `appends`. The caller keeps the bounds."""
    parts: list[bytes] = []
    for append in appends:
        parts += (_EACH_TAG, _length(len(append)), append)
    size = sum(map(len, parts))
    return b"".join((_SEVERAL_TAG, _length(size), *parts))


def single_to_pb(outcome: AppendOutcome) -> log_pb2.AppendStreamResponse:
    """Encode the outcome of a step of one append."""
    answer = log_pb2.AppendStreamResponse()
    if isinstance(outcome, EddylineError):
        _fill_error(answer.error, outcome)
        return answer
    _fill_result(answer, outcome)
    answer.epoch = outcome.epoch
    return answer


def several_to_pb(outcomes: Sequence[AppendOutcome]) -> log_pb2.AppendStreamResponse:
    """Encode the outcomes of a step of several appends, all of one topic."""
    answer = log_pb2.AppendStreamResponse()
    add = answer.outcomes.add
    for outcome in outcomes:
        if isinstance(outcome, EddylineError):
            _fill_error(add().error, outcome)
        else:
            _fill_result(add(), outcome)
            answer.epoch = outcome.epoch
    return answer


def outcomes_from_pb(answer: log_pb2.AppendStreamResponse) -> list[AppendOutcome]:
    """Decode the outcomes of one answer, in the order of its appends. An answer without outcomes is that of one append."""
    epoch = answer.epoch
    if not answer.outcomes:
        return [error_from_pb(answer.error) if answer.HasField("error") else _result(answer, epoch)]
    return [
        error_from_pb(outcome.error) if outcome.HasField("error") else _result(outcome, epoch)
        for outcome in answer.outcomes
    ]


def error_from_pb(error: log_pb2.AppendError) -> EddylineError:
    """Decode the error of one append as the class of its reason."""
    return from_parts(ErrorParts(error.code, error.reason, error.message, error.metadata))


def _length(number: int) -> bytes:
    """Return a length as a varint."""
    if number < 0x80:
        return _SHORT[number]
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _fill_error(target: log_pb2.AppendError, error: EddylineError) -> None:
    parts = to_parts(error)
    target.code, target.reason, target.message = parts.code, parts.reason, parts.message
    target.metadata.update(parts.metadata)


def _fill_result(target: log_pb2.AppendStreamResponse | log_pb2.AppendOutcome, result: AppendResult) -> None:
    target.first_seq = result.first_seq
    target.last_seq = result.last_seq
    target.ts_ms = result.ts_ms
    target.deduplicated = result.deduplicated


def _result(source: log_pb2.AppendStreamResponse | log_pb2.AppendOutcome, epoch: int) -> AppendResult:
    return AppendResult(source.first_seq, source.last_seq, epoch, source.ts_ms, source.deduplicated)
