"""One call to a role: gRPC errors become domain errors, and what is safe to repeat is repeated.

A call also ends where its channel is closed because the cluster names its address no longer (`cluster_map`). grpc.aio
then cancels it, which looks to the awaiting task as if that task were cancelled; here it is one more reason to retry. A
call is repeated while the answer is `UNAVAILABLE` or `RESOURCE_EXHAUSTED`, with full jitter, until its deadline. Only
reads and writes that carry their own identity (an idempotency key, a writer position) may go through `Retry`.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

import grpc

from eddyline.core.errors import BatchTooLarge, Code, EddylineError, NotReady, TopicNotFound
from eddyline.core.records.record import MESSAGE_BYTES_MAX
from eddyline.core.runtime.backoff import Backoff
from eddyline.core.runtime.clock import sleep
from eddyline.core.telemetry.trace_context import TRACEPARENT, parse_traceparent
from eddyline.core.transport.status import unwrap

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable, Iterator

    from google.protobuf.message import Message

    from eddyline.core.runtime.clock import Clock

RETRY_CAP_S: Final = 2.0
"""Default in gRPC: 120 s; a role of ours is back within a second of its death. One call a second a client on
average."""
CALL_TIMEOUT_S: Final = 30.0

RETRYABLE: Final = frozenset({Code.UNAVAILABLE, Code.RESOURCE_EXHAUSTED})
STREAM_RETRYABLE: Final = RETRYABLE | {Code.DEADLINE_EXCEEDED}
"""A stream that knows its place may be cut off at any time and goes on."""

Answer = TypeVar("Answer")


def check_message(append: Message, *, around_bytes: int = 0) -> None:
    """Refuse an append that no call carries: it is stored as a whole or not at all, so it is not cut into several.
    `around_bytes`: what the message has beside it.

    Raises:
        BatchTooLarge.
    """
    size = append.ByteSize() + around_bytes
    if size > MESSAGE_BYTES_MAX:
        raise BatchTooLarge(
            f"the append has {size} bytes as one message, at most {MESSAGE_BYTES_MAX}: append in several calls",
            sizeBytes=size,
            limitBytes=MESSAGE_BYTES_MAX,
        )


def traced(traceparent: str) -> tuple[tuple[str, str], ...]:
    """A call's metadata that says which trace it is part of; none where that is empty, or no W3C `traceparent`."""
    return ((TRACEPARENT, traceparent),) if parse_traceparent(traceparent) is not None else ()


async def call_once(call: Awaitable[Answer]) -> Answer:
    """Await one call.

    Raises:
        EddylineError: what the role answered, as the class of its reason.
    """
    with domain_errors():
        return await call


@contextmanager
def domain_errors() -> Iterator[None]:
    """Around what awaits a call.

    Raises:
        EddylineError: what the role answered, as the class of its reason; NotReady: the call's channel was closed.
    """
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise unwrap(error) from None
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise NotReady("the connection was closed under the call") from None


@contextmanager
def kv_topic_wanted(*, wanted: bool = True) -> Iterator[None]:
    """Around a call that only a KV topic answers: the advice for a missing topic is then to create one of that kind."""
    try:
        yield
    except TopicNotFound as error:
        if wanted:
            error.metadata["kvWanted"] = "1"
        raise


class Retry:
    """Repeats calls until they succeed, fail for good, or their time is over."""

    def __init__(self, clock: Clock, *, random_source: random.Random) -> None:
        self._clock = clock
        self._random = random_source

    def tries(
        self,
        *,
        timeout_s: float,
        retryable: frozenset[Code] = RETRYABLE,
        on_retry: Callable[[EddylineError], None] | None = None,
    ) -> Tries:
        """The tries of one piece of work. `on_retry` hears of an outage once: its first failure that is tried again."""
        return Tries(
            self._clock,
            random_source=self._random,
            timeout_s=timeout_s,
            retryable=retryable,
            on_retry=on_retry,
        )

    async def run(
        self,
        make_call: Callable[[float], Awaitable[Answer]],
        *,
        timeout_s: float,
        on_retry: Callable[[EddylineError], None] | None = None,
    ) -> Answer:
        """Call `make_call(seconds left)` until it answers. `on_retry` hears of the first failure that is tried again.

        Raises:
            EddylineError: the last answer, when it is final or the time is over.
        """
        tries = self.tries(timeout_s=timeout_s, on_retry=on_retry)
        while True:
            try:
                return await call_once(make_call(max(tries.left_s, 0.001)))
            except EddylineError as error:
                await tries.wait(error)


class Tries:
    """Says whether there is another try, and when. Made by `Retry.tries`."""

    def __init__(
        self,
        clock: Clock,
        *,
        random_source: random.Random,
        timeout_s: float,
        retryable: frozenset[Code],
        on_retry: Callable[[EddylineError], None] | None,
    ) -> None:
        self._clock = clock
        self._backoff = Backoff(random_source, cap_s=RETRY_CAP_S)
        self._timeout_s = timeout_s
        self._retryable = retryable
        self._on_retry = on_retry
        self._reported = False
        self._deadline_s = clock.monotonic_s() + timeout_s

    @property
    def left_s(self) -> float:
        """Time until the last try; below 0 when it is over."""
        return self._deadline_s - self._clock.monotonic_s()

    @property
    def failures(self) -> int:
        """Failures since the start, or since it last went on."""
        return self._backoff.failures

    def reset(self) -> None:
        """Restart the time limit: the work made progress."""
        self._backoff.reset()
        self._reported = False
        self._deadline_s = self._clock.monotonic_s() + self._timeout_s

    async def wait(self, error: EddylineError) -> None:
        """Wait for the next try after this failure.

        Raises:
            EddylineError: `error`, where there is none.
        """
        delay_s = self._backoff.next_delay_s(minimum_s=retry_after_s(error))
        if error.code not in self._retryable or self.left_s <= delay_s:
            raise error
        if self._on_retry is not None and not self._reported:
            self._reported = True
            self._on_retry(error)
        await sleep(self._clock, delay_s)


def retry_after_s(error: EddylineError) -> float:
    """Return the role's RetryInfo in seconds; 0 = none."""
    delay_ms = error.metadata.get("retryAfterMs", "")
    return int(delay_ms) / 1000 if delay_ms.isdecimal() else 0.0
