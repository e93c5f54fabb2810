"""Errors over a real server and back."""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]  # no py.typed in it

from eddyline.core import errors
from eddyline.core.errors import (
    Code,
    Deadline,
    EddylineError,
    HeadMismatch,
    Internal,
    InvalidName,
    NotReady,
    StoreUnreachable,
    Throttled,
    VersionMismatch,
)
from eddyline.core.transport.status import DETAILS_KEY, MESSAGE_BYTES_MAX, to_status, unwrap
from eddyline.v1 import errors_pb2
from tests.support.rpc import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

KINDS = ("unary_unary", "stream_unary", "unary_stream", "stream_stream")
STREAMS = ("unary_stream", "stream_stream")
CLASSES = {
    found.reason: found
    for found in vars(errors).values()
    if isinstance(found, type) and issubclass(found, EddylineError) and found is not EddylineError
}


async def caught(answers: AsyncIterator[bytes]) -> tuple[list[bytes], grpc.aio.AioRpcError]:
    received: list[bytes] = []
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        async for answer in answers:
            received.append(answer)  # noqa: PERF401 - what came before the error is what is asked
    return received, raised.value


def details_of(error: grpc.aio.AioRpcError) -> status_pb2.Status:
    values = [value for key, value in error.trailing_metadata() if key == DETAILS_KEY]
    assert len(values) == 1
    return status_pb2.Status.FromString(values[0])


@pytest.mark.parametrize("kind", KINDS)
async def test_every_error_class_comes_back_as_itself(kind: str) -> None:
    async def handler(request: bytes, number: int) -> bytes:
        raise CLASSES[request.decode()](f"no: {request.decode()} ä", headSeq=7, retryAfterMs=1500, field="topic")

    async with serving(handler) as kinds:
        for reason, error_class in CLASSES.items():
            received, raised = await caught(kinds.calls[kind](reason.encode()))
            error = unwrap(raised)
            assert received == []
            assert raised.code().name == error_class.code.value
            assert type(error) is error_class
            assert error.message == str(error) == f"no: {reason} ä"
            assert error.metadata == {"headSeq": "7", "retryAfterMs": "1500", "field": "topic"}


@pytest.mark.parametrize("kind", STREAMS)
async def test_an_error_after_the_first_message_of_a_stream_is_typed(kind: str) -> None:
    async def handler(request: bytes, number: int) -> bytes:
        if number == 2:
            raise HeadMismatch("moved", headSeq=9)
        return request + str(number).encode()

    async with serving(handler) as kinds:
        received, raised = await caught(kinds.calls[kind](b"m"))
    error = unwrap(raised)
    assert received == [b"m0", b"m1"]
    assert isinstance(error, HeadMismatch)
    assert error.head_seq == 9


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        ([HeadMismatch("moved", headSeq=9)], HeadMismatch),
        ([ExceptionGroup("inner", [HeadMismatch("moved", headSeq=9)]), NotReady("stop")], HeadMismatch),
        ([HeadMismatch("moved", headSeq=9), KeyError("defect")], Internal),
    ],
)
async def test_a_task_group_s_domain_error_keeps_its_code_unless_a_defect_is_in_the_group(
    raised: list[Exception], expected: type[EddylineError]
) -> None:
    async def handler(request: bytes, number: int) -> bytes:
        raise ExceptionGroup("tasks", raised)

    async with serving(handler) as kinds:
        _, error = await caught(kinds.calls["unary_stream"](b"m"))
    assert type(unwrap(error)) is expected


@pytest.mark.parametrize("kind", KINDS)
async def test_an_unexpected_exception_is_internal_with_an_id_that_the_log_has(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(request: bytes, number: int) -> bytes:
        raise KeyError("a secret of ours")

    async with serving(handler) as kinds:
        with caplog.at_level(logging.ERROR):
            _, raised = await caught(kinds.calls[kind](b"m"))
    error = unwrap(raised)
    assert isinstance(error, Internal)
    assert error.metadata == {"id": "the-id"}
    assert "secret" not in str(raised)
    logged = [entry for entry in caplog.records if entry.name == "eddyline.core.server.error_interceptor"]
    assert len(logged) == 1
    assert vars(logged[0])["fields"]["id"] == "the-id"
    assert logged[0].exc_info is not None


@pytest.mark.parametrize("kind", KINDS)
async def test_a_cancelled_call_stops_its_work(kind: str) -> None:
    started, stopped = asyncio.Event(), asyncio.Event()

    async def handler(request: bytes, number: int) -> bytes:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return b""

    async def call() -> None:
        async for _ in kinds.calls[kind](b"m"):
            pass

    async with serving(handler) as kinds, asyncio.TaskGroup() as tasks:
        task = tasks.create_task(call())
        await started.wait()
        task.cancel()
        await asyncio.wait_for(stopped.wait(), 5)
    assert task.cancelled()


def test_reasons_and_codes_are_those_of_the_contract() -> None:
    contract = (Path(__file__).parents[3] / "proto/eddyline/v1/errors.proto").read_text(encoding="utf-8")
    entry = re.compile(r"^  // ([A-Z_]+): .*\n(?:  //.*\n)*  ERROR_REASON_([A-Z_]+) = \d+;", re.MULTILINE)
    listed = {reason: code for code, reason in entry.findall(contract)}
    assert set(listed) == {name.removeprefix("ERROR_REASON_") for name in errors_pb2.ErrorReason.keys()[1:]}
    assert {reason: found.code.value for reason, found in CLASSES.items()} == listed


def test_exactly_one_error_info_and_the_typed_details() -> None:
    status = status_pb2.Status.FromString(to_status(Throttled("later", retryAfterMs=250)).trailing_metadata[0][1])
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    assert len(status.details) == 2
    assert status.details[0].Unpack(info)
    assert (info.domain, info.reason) == ("eddyline", "THROTTLED")
    assert status.details[1].Unpack(retry)
    assert retry.retry_delay.ToMilliseconds() == 250


def test_a_named_field_is_a_bad_request() -> None:
    status = status_pb2.Status.FromString(to_status(InvalidName("bad", field="topic")).trailing_metadata[0][1])
    bad = error_details_pb2.BadRequest()
    assert len(status.details) == 2
    assert status.details[1].Unpack(bad)
    assert [(violation.field, violation.description) for violation in bad.field_violations] == [("topic", "bad")]


async def test_the_largest_error_arrives_whole_enough() -> None:
    key = "ff" * 1024

    async def handler(request: bytes, number: int) -> bytes:
        raise VersionMismatch("ü" * 5000, key=key, version="00" * 10)

    async with serving(handler) as kinds:
        _, raised = await caught(kinds.calls["unary_unary"](b"m"))
    error = unwrap(raised)
    assert isinstance(error, VersionMismatch)
    assert error.key == b"\xff" * 1024
    assert len(error.message.encode()) <= MESSAGE_BYTES_MAX


def made(code: grpc.StatusCode, trailing: tuple[tuple[str, str | bytes], ...] = ()) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailing), "said by gRPC")


def test_a_peer_that_does_not_answer_is_not_ready_or_the_class_of_the_caller() -> None:
    assert type(unwrap(made(grpc.StatusCode.UNAVAILABLE))) is NotReady
    assert type(unwrap(made(grpc.StatusCode.UNAVAILABLE), unreachable=StoreUnreachable)) is StoreUnreachable


@pytest.mark.parametrize("details", ["Internal error from Core", "Received RST_STREAM with error code 2"])
def test_a_connection_that_broke_under_a_write_is_a_peer_that_does_not_answer(details: str) -> None:
    broken = grpc.aio.AioRpcError(grpc.StatusCode.INTERNAL, grpc.aio.Metadata(), grpc.aio.Metadata(), details)
    assert type(unwrap(broken)) is NotReady


def test_a_deadline_of_grpc_is_a_deadline() -> None:
    assert type(unwrap(made(grpc.StatusCode.DEADLINE_EXCEEDED))) is Deadline


@pytest.mark.parametrize(
    ("wire", "code"),
    [
        (grpc.StatusCode.UNIMPLEMENTED, Code.UNIMPLEMENTED),
        (grpc.StatusCode.UNKNOWN, Code.INTERNAL),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, Code.RESOURCE_EXHAUSTED),
    ],
)
def test_a_status_of_grpc_itself_keeps_its_code(wire: grpc.StatusCode, code: Code) -> None:
    error = unwrap(made(wire))
    assert (error.code, error.reason) == (code, wire.name)


def test_a_reason_of_a_newer_peer_is_a_generic_error_of_its_code() -> None:
    info = error_details_pb2.ErrorInfo(domain="eddyline", reason="NEWER", metadata={"a": "b"})
    status = status_pb2.Status()
    status.details.add().Pack(info)
    error = unwrap(made(grpc.StatusCode.ABORTED, ((DETAILS_KEY, status.SerializeToString()),)))
    assert (error.code, error.reason, error.metadata) == (Code.ABORTED, "NEWER", {"a": "b"})
    assert to_status(error).code is grpc.StatusCode.ABORTED


@pytest.mark.parametrize("value", [b"\xff\xff", b""])
def test_foreign_details_are_ignored(value: bytes) -> None:
    assert type(unwrap(made(grpc.StatusCode.UNAVAILABLE, ((DETAILS_KEY, value),)))) is NotReady
