"""One call to a role: gRPC errors become domain errors, and what is safe to repeat is repeated.

A call is repeated while the answer is `UNAVAILABLE` or `RESOURCE_EXHAUSTED`, with full jitter, until its deadline. Only
reads and writes that carry their own identity (an idempotency key, a writer position) may go through `Retry`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import grpc

from eddyline.core.backoff import Backoff
from eddyline.core.clock import sleep
from eddyline.core.errors import Code, EddylineError
from eddyline.core.status import unwrap

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable

    from eddyline.core.clock import Clock

RETRY_CAP_S: Final = 2.0
"""Elsewhere up to 120 s: a role of ours is back within a second of its death. One call a second a client on average."""
CALL_TIMEOUT_S: Final = 30.0

RETRYABLE: Final = frozenset({Code.UNAVAILABLE, Code.RESOURCE_EXHAUSTED})

Answer = TypeVar("Answer")


async def call_once(call: Awaitable[Answer]) -> Answer:
    """Await one call.

    Raises:
        EddylineError: what the role answered, as the class of its reason.
    """
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise unwrap(error) from None


class Retry:
    """Repeats calls until they succeed, fail for good, or their time is over."""

    def __init__(self, clock: Clock, *, random_source: random.Random) -> None:
        self._clock = clock
        self._random = random_source

    async def run(
        self,
        make_call: Callable[[float], Awaitable[Answer]],
        *,
        timeout_s: float,
        on_retry: Callable[[EddylineError], None] | None = None,
    ) -> Answer:
        """Call `make_call(seconds left)` until it answers. `on_retry` hears of each failure that is tried again.

        Raises:
            EddylineError: the last answer, when it is final or the time is over.
        """
        deadline_s = self._clock.monotonic_s() + timeout_s
        backoff = Backoff(self._random, cap_s=RETRY_CAP_S)
        while True:
            left_s = deadline_s - self._clock.monotonic_s()
            try:
                return await call_once(make_call(max(left_s, 0.001)))
            except EddylineError as error:
                delay_s = backoff.next_s(at_least_s=retry_after_s(error))
                if error.code not in RETRYABLE or deadline_s - self._clock.monotonic_s() <= delay_s:
                    raise
                if on_retry is not None:
                    on_retry(error)
            await sleep(self._clock, delay_s)


def retry_after_s(error: EddylineError) -> float:
    """How long the role asked to wait; 0 where it did not."""
    asked = error.metadata.get("retryAfterMs", "")
    return int(asked) / 1000 if asked.isdecimal() else 0.0
