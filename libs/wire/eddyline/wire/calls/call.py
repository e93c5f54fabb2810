"""One call: its stream as messages, its deadline, its status and its task.

Reading: messages wait in an inbox, and the client gets credit for a message as the handler takes it, so a handler that does
not read holds at most a stream's window. While a handler waits for a message, the parts of it that arrive are credited at
once: a message may be larger than the window.
K1: `stream.unread` = bytes of the inbox and of the incomplete message, less `_credited`, which belongs to the first of them.
K2: a status is sent at most once. A call whose stream closes before it was sent is cancelled, and so is its task.
Ending: a call leaves its server when its stream is closed and its task has ended, whichever is later.
Threading: event loop.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

from eddyline.wire.calls.assembler import PREFIX_BYTES, Assembler, MessageRefused
from eddyline.wire.calls.metadata import ACCEPT_BLOCK, HEADERS_BLOCK, OK_BLOCK, encode_metadata, encode_trailers
from eddyline.wire.http2.errors import ErrorCode
from eddyline.wire.http2.frames import DATA, END_HEADERS, END_STREAM, HEADERS

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from eddyline.wire.calls.metadata import Metadatum
    from eddyline.wire.http2.stream import Http2Stream
    from eddyline.wire.transport.connection import SocketConnection
    from eddyline.wire.transport.counters import StreamBacklog

OK: Final = 0
CANCELLED: Final = 1
UNKNOWN: Final = 2
DEADLINE_EXCEEDED: Final = 4
RESOURCE_EXHAUSTED: Final = 8
UNIMPLEMENTED: Final = 12
INTERNAL: Final = 13
UNAVAILABLE: Final = 14
"""Numbers of `grpc.StatusCode`."""
STATUS_DELAY_S: Final = 0.05
"""Time for which a status waits for the end of its request, whose bytes are dropped meanwhile. grpc.aio: none. A grpc.aio
client whose stream ends while it sends reports INTERNAL in place of the status in one of three calls, since its send fails.
Costs 50 ms on the status of a stream that its client keeps open."""
TIMER_S_MAX: Final = 86_400.0
"""A deadline further away has no timer: the connection ends before."""

_pack_prefix: Final = struct.Struct(">BI").pack
_pack_data: Final = struct.Struct(">IBIBI").pack
_HEADERS_START: Final = struct.pack(">IB", len(HEADERS_BLOCK) << 8 | HEADERS, END_HEADERS)
_TRAILERS_START: Final = struct.pack(">IB", len(OK_BLOCK) << 8 | HEADERS, END_HEADERS | END_STREAM)

_LOG: Final = logging.getLogger(__name__)


class Opening:
    """Path and metadata, with which a call opens. Equal header blocks of one connection share one object.

    `verdict` is a place for what a gate decided for this caller and method. A gate whose rules may change keeps their
    version with it, and decides again under another: the object lives as long as the connection repeats the block.
    """

    __slots__ = ("metadata", "path", "verdict")

    def __init__(self, path: str, metadata: tuple[Metadatum, ...]) -> None:
        self.path = path
        self.metadata = metadata
        self.verdict: object = None


class CallOwner(Protocol):
    """The server of a call."""

    loop: asyncio.AbstractEventLoop

    def run(self, call: Call) -> Coroutine[object, object, None]:
        """Return the coroutine that answers the call."""

    def release(self, call: Call) -> None:
        """Forget a call that is over."""


class Call:
    """A call. Made by the server for a stream; a `StreamHandler`."""

    __slots__ = (
        *("_assembler", "_assembling", "_credited", "_is_deferred", "_is_paused", "_on_end", "_on_message", "_owner"),
        *("_quick", "_reader", "_status_timer", "_task", "_timer", "_waiting_status", "_writable", "connection"),
        *("deadline_s", "done_callbacks", "inbox", "is_cancelled", "is_finished", "opening", "stream"),
    )

    def __init__(self, owner: CallOwner, stream: Http2Stream, connection: SocketConnection, opening: Opening) -> None:
        self._owner = owner
        self.stream = stream
        self.connection = connection
        self.opening = opening
        self.inbox: deque[bytes] = deque()
        self.deadline_s: float | None = None
        """In the loop's time; None = no deadline."""
        self.is_finished = False
        """A status was sent, or is queued behind messages."""
        self.is_cancelled = False
        """The client reset the stream, the connection is lost, or the deadline has passed."""
        self.done_callbacks: list[Callable[[], None]] = []
        self._assembler = Assembler(stream.connection.limits.message_bytes_max)
        self._assembling = 0
        """Bytes that this call adds to the connection's `assembling_bytes`."""
        self._credited = 0
        self._is_paused = False
        self._reader: asyncio.Future[None] | None = None
        self._writable: asyncio.Event | None = None
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._waiting_status: bytes | None = None
        """Block of a status that waits for the end of the request."""
        self._status_timer: asyncio.TimerHandle | None = None
        self._quick: Callable[[Call, bytes], bytes | None] | None = None
        self._is_deferred = False
        """A quick handler answers later."""
        self._on_message: Callable[[bytes], bool] | None = None
        self._on_end: Callable[[], None] | None = None

    # -- for the server

    def begin(
        self, *, timeout_s: float | None, at_once: bool, quick: Callable[[Call, bytes], bytes | None] | None = None
    ) -> None:
        """Serve the stream. `at_once` = start the handler before a message has come; otherwise with the first bytes.

        `quick` gets a request that came whole, and answers it or returns None, which leaves it to the handler.
        """
        self.stream.handler = self
        self._quick = quick
        if timeout_s is not None:
            loop = self._owner.loop
            self.deadline_s = loop.time() + timeout_s
            if timeout_s <= TIMER_S_MAX:
                self._timer = loop.call_later(timeout_s, self._expire)
        if at_once:
            self._start()

    def refuse(self, code: int, message: str) -> None:
        """Answer the stream with a status alone; no handler runs."""
        self.stream.handler = self
        self.finish(code, message)

    def stop(self, code: int, message: str) -> None:
        """End the call with a status, and cancel its handler. Messages that wait for the client's window are dropped."""
        self.finish(code, message)
        self._send_status()
        if not self.stream.is_closed:
            self.stream.reset(ErrorCode.CANCEL)
        self._cancel_task()

    # -- of StreamHandler

    def on_data(self, data: bytes) -> None:
        if self.is_finished:
            self.stream.consume(self.stream.unread)
            return
        try:
            messages = self._assembler.feed(data)
        except MessageRefused as refused:
            code = UNIMPLEMENTED if refused.is_compressed else RESOURCE_EXHAUSTED
            self._refuse(code, str(refused), ACCEPT_BLOCK if refused.is_compressed else b"")
            return
        if not self._count_parts():
            self._refuse(RESOURCE_EXHAUSTED, "too many bytes of incomplete messages on this connection")
            return
        if messages:
            if self._quick is not None and self._answer_quickly(messages):
                return
            self.inbox.extend(messages)
            self._deliver()
        if self._reader is not None or self._is_receiving:
            self._credit_parts()
        self._start_once()

    def on_end(self) -> None:
        self._send_status()
        if self._assembler.held_bytes and not self.is_finished:
            self._refuse(INTERNAL, "the request ends inside a message")
            return
        self._deliver()
        self._start_once()

    def on_writable(self) -> None:
        if self._writable is not None:
            self._writable.set()

    def on_closed(self, code: ErrorCode | None) -> None:
        self.stream.connection.assembling_bytes -= self._assembling
        for timer in (self._timer, self._status_timer):
            if timer is not None:
                timer.cancel()
        if code is not None and not self.is_finished:
            self.is_cancelled = True
        self._wake_reader()
        self.on_writable()
        if not self.is_finished:
            self._cancel_task()
        for callback in self.done_callbacks:
            try:
                callback()
            except Exception as error:  # a callback's fault is not the call's
                _LOG.exception("a callback of a call failed", exc_info=error)
        self.done_callbacks.clear()
        if self._task is None:
            self._owner.release(self)

    # -- reading

    async def read(self) -> bytes | None:
        """Return the next message; None = the client has ended its side, or the call is over. One reader at a time."""
        while not self.inbox:
            if self.stream.is_ended or self.stream.is_closed:
                return None
            assert self._reader is None, "two coroutines read one call"
            self._credit_parts()
            self._reader = self._owner.loop.create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        return self._take()

    def receive(self, on_message: Callable[[bytes], bool], on_end: Callable[[], None]) -> None:
        """Give each message to `on_message` as it comes, without a coroutine, and the end of the request to `on_end`.

        `on_message` returns False to pause: later messages wait, and the client is held back by its window, until `resume`.
        Messages that wait now are given before this returns.
        """
        assert self._on_message is None and self._reader is None
        self._on_message, self._on_end = on_message, on_end
        self.resume()

    def resume(self) -> None:
        """Go on after a pause."""
        self._is_paused = False
        self._deliver()
        if self._is_receiving:
            self._credit_parts()

    def backlog(self) -> StreamBacklog:
        """Return what the client has not taken of the response."""
        return self.connection.backlog(self.stream, self.now())

    # -- time

    def now(self) -> float:
        """Return the loop's time in seconds, of which `deadline_s` is a value."""
        return self._owner.loop.time()

    async def next_turn(self) -> None:
        """Let the loop write what this turn has sent, and serve others."""
        await asyncio.sleep(0)

    # -- answering

    def open(self, metadata: Sequence[tuple[str, str | bytes]] = ()) -> None:
        """Send the response's header fields.

        Raises:
            ValueError: the metadata cannot be sent.
        """
        self.stream.open(HEADERS_BLOCK + encode_metadata(metadata) if metadata else HEADERS_BLOCK)

    def send(self, message: bytes) -> bool:
        """Send a message, or queue it. False: wait for `writable` before the next, or the call is over.

        A message above `sent_message_bytes_max` ends the call, RESOURCE_EXHAUSTED.
        """
        stream = self.stream
        if len(message) > stream.connection.limits.sent_message_bytes_max:
            bytes_max = stream.connection.limits.sent_message_bytes_max
            self.finish(RESOURCE_EXHAUSTED, f"Sent message larger than max ({len(message)} vs. {bytes_max})")
            return False
        if not stream.is_opened:
            stream.open(HEADERS_BLOCK)
        return stream.send(_pack_prefix(0, len(message)) + message)

    async def writable(self) -> None:
        """Wait until half of the queue's mark is sent, or the call is over."""
        stream = self.stream
        if self._writable is None:
            self._writable = asyncio.Event()
        while not stream.is_closed and stream.queued_bytes * 2 > stream.connection.limits.queue_bytes_mark:
            self._writable.clear()
            stream.ask_for_room()
            await self._writable.wait()

    def defer(self) -> None:
        """Have a quick handler answer later, by `answer` or `finish`: no other handler runs.

        The call stays one of its server's until then, and ends by its deadline, its client or `stop` like any other.
        """
        self._is_deferred = True

    def answer(self, message: bytes) -> None:
        """Send the only message of a response and its status OK."""
        if self.is_finished or self.stream.is_closed:
            return
        size = PREFIX_BYTES + len(message)
        if not self.stream.is_opened and size <= self.stream.connection.sent_frame_bytes_max:
            self.is_finished = True
            if self.stream.respond(_encode_response(self.stream.id, message), size):
                return
            self.is_finished = False
        self.send(message)
        self.finish(OK)

    def finish(self, code: int, message: str = "", metadata: Sequence[tuple[str, str | bytes]] = ()) -> None:
        """End the response after what is queued.

        Raises:
            ValueError: the metadata cannot be sent; nothing was.
        """
        if self.is_finished or self.stream.is_closed:
            return
        if code == OK and not message and not metadata:
            block = OK_BLOCK
        else:
            bytes_max = self.stream.connection.peer_header_list_bytes_max
            block = encode_trailers(code, message, metadata, bytes_max=bytes_max)
        self._end(block)

    # -- parts

    def _end(self, block: bytes) -> None:
        self.is_finished = True
        stream = self.stream
        # The rest of the request is dropped. Its credit lets a client that waits for the window come to its end.
        self.inbox.clear()
        self._assembler.clear()
        self._count_parts()
        stream.consume(stream.unread)
        block = block if stream.is_opened else HEADERS_BLOCK + block
        if stream.is_ended:
            stream.end(block)
        else:
            self._waiting_status = block
            self._status_timer = self._owner.loop.call_later(STATUS_DELAY_S, self._send_status)

    def _send_status(self) -> None:
        if self._waiting_status is not None:
            self.stream.end(self._waiting_status)
            self._waiting_status = None

    def _refuse(self, code: int, message: str, extra: bytes = b"") -> None:
        """End a call for what its client sent; the handler is cancelled."""
        if not self.is_finished:
            bytes_max = self.stream.connection.peer_header_list_bytes_max
            self._end(encode_trailers(code, message, (), bytes_max=bytes_max) + extra)
        self._cancel_task()

    def _answer_quickly(self, messages: list[bytes]) -> bool:
        """Let the quick handler answer the only message of a request; False = it did not."""
        quick, self._quick = self._quick, None
        if quick is None or self._task is not None or len(messages) != 1:
            return False
        try:
            answer = quick(self, messages[0])
        except Exception as error:  # as of a handler: the caller learns no more than that
            _LOG.exception("unexpected error in a quick handler", exc_info=error)
            self.finish(UNKNOWN, "unexpected error")
            return True
        if answer is not None:
            self.answer(answer)
        return self.is_finished or self.stream.is_closed or self._is_deferred

    def _start_once(self) -> None:
        """Start the handler, unless it runs or the call needs none."""
        if self._task is None and not self.is_finished and not self._is_deferred:
            self._start()

    def _start(self) -> None:
        # The server owns the task: it keeps the call, cancels it and waits for it in `stop`.
        self._task = self._owner.loop.create_task(self._owner.run(self))
        self._task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            _LOG.error("unexpected error in a call", exc_info=error)
        if not self.stream.is_closed and not self.is_finished:
            self.finish(CANCELLED if task.cancelled() else UNKNOWN, "the handler ended without a status")
        self._task = None
        if self.stream.is_closed:
            self._owner.release(self)

    def _count_parts(self) -> bool:
        """Count the incomplete message among those of its connection; False = they are too many."""
        http2 = self.stream.connection
        http2.assembling_bytes += self._assembler.held_bytes - self._assembling
        self._assembling = self._assembler.held_bytes
        return http2.assembling_bytes <= http2.limits.assembling_bytes_max

    def _cancel_task(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _expire(self) -> None:
        self.is_cancelled = True
        self.stop(DEADLINE_EXCEEDED, "Deadline Exceeded")

    @property
    def _is_receiving(self) -> bool:
        return self._on_message is not None and not self._is_paused

    def _deliver(self) -> None:
        """Give what has come to the coroutine that waits, or to the function that takes messages."""
        if self._on_message is None:
            self._wake_reader()
            return
        try:
            while self.inbox and not self._is_paused and not self.is_finished:
                self._is_paused = not self._on_message(self._take())
            if self.stream.is_ended and not self.inbox and not self._is_paused and self._on_end is not None:
                on_end, self._on_end = self._on_end, None
                on_end()
        except Exception as error:  # as of a handler: its call ends, the connection goes on
            _LOG.exception("unexpected error in a call", exc_info=error)
            self._refuse(UNKNOWN, "unexpected error")

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _take(self) -> bytes:
        message = self.inbox.popleft()
        credit = PREFIX_BYTES + len(message) - self._credited
        self._credited = 0
        self.stream.consume(credit)
        return message

    def _credit_parts(self) -> None:
        """Give credit for the incomplete message, which is the next one to be taken."""
        if not self.inbox:
            credit = self._assembler.held_bytes - self._credited
            self._credited += credit
            self.stream.consume(credit)


def send_to_all(calls: Sequence[Call], message: bytes) -> list[Call]:
    """Send one message to many calls, and return those that cannot take it now or are over, to which nothing was sent.

    The frame is made once a stream id, and most connections have their stream under the same id. A message above
    `sent_frame_bytes_max` is taken by none.
    """
    size = PREFIX_BYTES + len(message)
    frames: dict[int, bytes] = {}
    behind: list[Call] = []
    for call in calls:
        stream = call.stream
        frame = frames.get(stream.id)
        if frame is None:
            frame = frames[stream.id] = _pack_data(size << 8 | DATA, 0, stream.id, 0, len(message)) + message
        if call.is_finished or not stream.send_frame(frame, size):
            behind.append(call)
    return behind


def _encode_response(stream_id: int, message: bytes) -> bytes:
    """Return the frames of a whole response: header fields, a message, and trailers with status OK."""
    encoded_id = stream_id.to_bytes(4, "big")
    size = PREFIX_BYTES + len(message)
    parts = (
        *(_HEADERS_START, encoded_id, HEADERS_BLOCK),
        *(_pack_data(size << 8 | DATA, 0, stream_id, 0, len(message)), message),
        *(_TRAILERS_START, encoded_id, OK_BLOCK),
    )
    return b"".join(parts)
