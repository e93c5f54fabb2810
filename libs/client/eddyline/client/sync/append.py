"""Blocking forms of the two ways to append with many in flight: a stream, and a run that survives restarts of the
store.

Threading: a stream and a run are used by one thread; its records are read on that thread. Each append hands over once,
about 100 µs: a batch of records in one append is faster than a stream of single ones.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING

from eddyline.client.append.gathered_call import IN_FLIGHT_MAX

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
    from contextlib import AbstractAsyncContextManager

    from eddyline.client.append.append_run import AppendRun as AioAppendRun
    from eddyline.client.append.append_run import NumberedRecord
    from eddyline.client.append.append_stream import AppendStream as AioAppendStream
    from eddyline.client.append.gathered_call import Acknowledgement as AioAcknowledgement
    from eddyline.client.sync.loop_thread import LoopThread
    from eddyline.core.errors import EddylineError
    from eddyline.core.records.record import Record
    from eddyline.core.store_link.protocol import AppendResult


class Acknowledgement:
    """An append under way: `wait` returns its `AppendResult`, or raises what the stream failed with."""

    def __init__(self, loop: LoopThread, acknowledgement: AioAcknowledgement) -> None:
        self._loop = loop
        self._acknowledgement = acknowledgement

    @property
    def done(self) -> bool:
        """True = the outcome is known."""
        return self._acknowledgement.done

    @property
    def result(self) -> AppendResult | None:
        """The outcome; None = not known yet, or an error."""
        return self._acknowledgement.result

    @property
    def error(self) -> EddylineError | None:
        """The error; None = not known yet, or stored."""
        return self._acknowledgement.error

    def wait(self) -> AppendResult:
        """Wait for the outcome.

        Raises:
            EddylineError: what the stream failed with.
        """

        async def outcome() -> AppendResult:
            return await self._acknowledgement

        return self._loop.run(outcome)


class AppendStream:
    """One open stream; `Client.append_stream` opens and closes it."""

    def __init__(self, loop: LoopThread, stream: AioAppendStream) -> None:
        self._loop = loop
        self._stream = stream

    @property
    def acknowledged(self) -> int:
        """Appends whose success is known; all of them came before any other."""
        return self._stream.acknowledged

    @property
    def first_seq(self) -> int:
        """Seq of the first record stored; 0 = none yet."""
        return self._stream.first_seq

    @property
    def last_seq(self) -> int:
        """Seq of the last record stored; 0 = none yet."""
        return self._stream.last_seq

    def append(
        self, records: Sequence[Record], *, idempotency_key: str = "", expected_head_seq: int | None = None
    ) -> Acknowledgement:
        """Send one append; returns when it is queued, at most 512 in flight.

        Raises:
            EddylineError: the stream has failed before. BatchTooLarge: more than 64 MiB; the stream goes on.
        """
        sent = self._loop.run(
            lambda: self._stream.append(records, idempotency_key=idempotency_key, expected_head_seq=expected_head_seq)
        )
        return Acknowledgement(self._loop, sent)

    def flush(self) -> None:
        """Wait for the outcome of everything sent.

        Raises:
            EddylineError: what the stream failed with.
        """
        self._loop.run(self._stream.flush)


@contextmanager
def append_stream(loop: LoopThread, opening: AbstractAsyncContextManager[AioAppendStream]) -> Iterator[AppendStream]:
    """Open a stream; leaving it waits for every outcome, or ends the call where the block raised."""

    async def enter() -> AioAppendStream:
        return await opening.__aenter__()

    async def leave() -> None:
        await opening.__aexit__(None, None, None)

    async def abandon() -> None:
        error = asyncio.CancelledError()
        await opening.__aexit__(type(error), error, None)

    stream = AppendStream(loop, loop.run(enter))
    try:
        yield stream
    except BaseException:
        loop.spawn(abandon)
        raise
    loop.run(leave)


class AppendRun:
    """One run. `Client.append_run` makes it; its counts are true at all times, read from any thread."""

    def __init__(self, loop: LoopThread, run: AioAppendRun) -> None:
        self._loop = loop
        self._run = run

    @property
    def run_id(self) -> str:
        """The start of its idempotency keys."""
        return self._run.run_id

    @property
    def acknowledged(self) -> int:
        """Appends known to be stored."""
        return self._run.acknowledged

    @property
    def acknowledged_number(self) -> int:
        """Number of the newest of them; all before it are stored too."""
        return self._run.acknowledged_number

    @property
    def first_seq(self) -> int:
        """Seq of the first record stored; 0 = none yet."""
        return self._run.first_seq

    @property
    def last_seq(self) -> int:
        """Seq of the last record stored; 0 = none yet."""
        return self._run.last_seq

    @property
    def unknown_count(self) -> int:
        """Appends that were sent and may be stored, without an answer so far."""
        return self._run.unknown_count

    @property
    def next_number(self) -> int:
        """Number of the oldest append that is not acknowledged; 0 = none is under way."""
        return self._run.next_number

    def run(self, records: Iterable[NumberedRecord]) -> None:
        """Append all of `records`, read on this thread; returns when everything is acknowledged. Called once.

        Raises:
            EddylineError: a refusal, or the failure that outlasted the retries. Errors of `records`, once all records
                before are acknowledged.
        """
        feed = _Feed(self._loop)
        running = self._loop.start(lambda: self._run.run(feed.records()))
        running.add_done_callback(lambda _: feed.end())
        try:
            feed.put(_fed(feed, records))
            self._loop.result(running)
        finally:
            running.cancel()


class _Feed:
    """Records from the caller's thread to the run on the loop, at most `IN_FLIGHT_MAX` ahead of it."""

    def __init__(self, loop: LoopThread) -> None:
        self._loop = loop
        self._waiting: deque[NumberedRecord | Exception | None] = deque()
        self._room = threading.Semaphore(IN_FLIGHT_MAX)
        self._arrived = asyncio.Event()
        self._ended = False

    def put(self, item: NumberedRecord | Exception | None) -> bool:
        """Hand over a record, or its end: an error of the input or None. False = the run has ended, and takes no
        more."""
        self._room.acquire()
        if self._ended:
            return False
        self._waiting.append(item)
        self._loop.post(self._arrived.set)
        return True

    def end(self) -> None:
        """Let the caller's thread go on: the run has ended."""
        self._ended = True
        # Twice: for the record that waits for room, and for the end after it.
        self._room.release(2)

    async def records(self) -> AsyncGenerator[NumberedRecord, None]:
        """Yield the records on the loop."""
        while True:
            while not self._waiting:
                self._arrived.clear()
                await self._arrived.wait()
            item = self._waiting.popleft()
            self._room.release()
            if item is None:
                return
            if isinstance(item, Exception):
                raise item
            yield item


def _fed(feed: _Feed, records: Iterable[NumberedRecord]) -> Exception | None:
    """Hand over all records; return the error of their iterator, which the run raises after the records before it."""
    try:
        for record in records:
            if not feed.put(record):
                break
    except Exception as error:
        return error
    return None
