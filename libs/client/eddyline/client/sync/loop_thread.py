"""One event loop in one daemon thread, which holds an asyncio client open and runs its calls for blocking callers.

I1: a call returns its result, or raises its error or a RuntimeError; it never waits for a loop that has ended. I2: an
exception in the waiting thread (KeyboardInterrupt) cancels the call, and the client stays usable. I3: after `os.fork`
every call in the child raises RuntimeError: the thread does not exist there, and gRPC does not survive a fork.
Threading: `run`, `start`, `spawn` and `close` are safe from any thread. The thread ends with `close`, when the last
reference to the LoopThread goes, and at interpreter exit.
Rejected: one loop for all clients of a process, since closing one client could then not end its thread; asyncio.run for
each call, which would open new connections for each.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import weakref
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

from eddyline.client.connect import connect as connect_async
from eddyline.client.transport.advice_note import add_advice

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from eddyline.client.connect import Client as AioClient
    from eddyline.core.auth.caller_channel import CallerAccess

T = TypeVar("T")

CLOSE_TIMEOUT_S: Final = 5.0
"""`close` waits at most this long for cancelled calls and channels; both take milliseconds. The daemon thread ends
later."""
_CLOSED: Final = "this client is closed: make a new one with eddyline.client.sync.connect()"
_FORKED: Final = (
    "this client was made before os.fork(), and gRPC does not survive a fork: call eddyline.client.sync.connect() after the "
    "fork, in each child process"
)
_FORKED_OPEN: Final = (
    "a client was open in the parent process when this process was forked, and gRPC does not survive that: call "
    "eddyline.client.sync.connect() only after the fork, in each child process, or close the client before the fork"
)
_NO_ANSWER: Final = (
    "gRPC does not work in this process: the event loop that connects gave no answer in time. If the process was forked "
    "while an Eddyline client or another gRPC channel was open, connect only after the fork"
)
_IN_LOOP: Final = (
    "a blocking call inside a running event loop would stop the loop: use the asyncio client, "
    "`from eddyline.client import connect`, or call it on a thread, `await asyncio.to_thread(...)`"
)
_IN_CALLBACK: Final = (
    "a callback (on_retry, on_resume, on_written, on_away, on_back, on_progress) runs on the client's own event loop, "
    "where a blocking call would wait for itself: hand the work to another thread"
)


class LoopThread:
    """A connected asyncio client in a thread of its own; `connect` makes it."""

    def __init__(self, address: str, *, access: CallerAccess | None, timeout_s: float) -> None:
        """Connect, and wait until the cluster is found.

        Raises:
            NotReady, Unauthenticated: as `eddyline.client.connect`. RuntimeError: an event loop runs in this thread, or a
                client of the parent process was open at the fork of this one.
        """
        _refuse_running_loop(None)
        if any(session.pid != os.getpid() and not session.closed for session in _SESSIONS):
            raise RuntimeError(_FORKED_OPEN)
        self._session = _Session(address, access=access, timeout_s=timeout_s)
        weakref.finalize(self, self._session.ask_end).atexit = False
        self._session.thread.start()
        atexit.register(self._session.end)
        try:
            self.client: Final = self._session.opened.result(timeout_s + CLOSE_TIMEOUT_S)
        except TimeoutError:
            self._session.ask_end()
            raise RuntimeError(_NO_ANSWER) from None
        except BaseException as error:
            self._session.ask_end()
            add_advice(error)
            raise

    def check(self) -> None:
        """Check that a call may block here.

        Raises:
            RuntimeError: the process was forked, the client is closed, or an event loop runs in this thread.
        """
        if os.getpid() != self._session.pid:
            raise RuntimeError(_FORKED)
        _refuse_running_loop(self._session.thread)
        if self._session.closed:
            raise RuntimeError(_CLOSED)

    def run(self, call: Callable[[], Coroutine[None, None, T]]) -> T:
        """Run one call on the loop and return its result; the calling thread waits.

        Raises:
            EddylineError: the call's, with its advice as a note. RuntimeError: see `check`; the client was closed
                meanwhile.
        """
        return self.result(self.start(call))

    def result(self, future: Future[T]) -> T:
        """Wait for a started call; an exception in the waiting thread cancels it. Raises as `run`."""
        try:
            return future.result()
        except CancelledError:
            raise RuntimeError(_CLOSED) from None
        except BaseException as error:
            future.cancel()
            add_advice(error)
            raise

    def start(self, call: Callable[[], Coroutine[None, None, T]]) -> Future[T]:
        """Start a call on the loop; cancelling the future cancels it, as `close` does.

        Raises:
            RuntimeError: see `check`.
        """
        self.check()
        return self._session.start(call)

    def spawn(self, call: Callable[[], Coroutine[None, None, None]]) -> None:
        """Start a clean-up on the loop without waiting for it; do nothing in a forked child or on a closed client."""
        session = self._session
        if os.getpid() == session.pid:
            with suppress(RuntimeError):
                session.start(call)

    def post(self, work: Callable[[], object]) -> None:
        """Run a short function on the loop, after everything posted before; do nothing on a closed client."""
        self._session.post(work)

    def close(self) -> None:
        """Cancel the calls in flight, close the channels and end the thread. Idempotent; does nothing in a forked
        child."""
        self._session.end()


class _Session:
    """The thread's part. It does not refer to its `LoopThread`, so that an abandoned client is collected and its thread
    ends."""

    def __init__(self, address: str, *, access: CallerAccess | None, timeout_s: float) -> None:
        self.pid: Final = os.getpid()
        self.opened: Final[Future[AioClient]] = Future()
        self.thread: Final = threading.Thread(target=self._run, name="eddyline-client", daemon=True)
        self.closed = False
        self._address = address
        self._access = access
        self._timeout_s = timeout_s
        self._loop = asyncio.new_event_loop()
        self._main: asyncio.Task[None] | None = None
        self._calls: set[asyncio.Task[object]] = set()
        # Reentrant: a finalizer or a signal handler may run while its own thread holds it.
        self._lock = threading.RLock()
        _SESSIONS.add(self)

    def start(self, call: Callable[[], Coroutine[None, None, T]]) -> Future[T]:
        with self._lock:
            # Under the lock, so that nothing is handed to a loop that has ended: its caller would wait for ever.
            if self.closed:
                raise RuntimeError(_CLOSED)
            return asyncio.run_coroutine_threadsafe(self._tracked(call), self._loop)

    def post(self, work: Callable[[], object]) -> None:
        with self._lock:
            if not self.closed:
                self._loop.call_soon_threadsafe(work)

    def ask_end(self) -> None:
        """Make the thread end soon."""
        if os.getpid() != self.pid:
            return
        with self._lock:
            if not self.closed:
                self.closed = True
                self._loop.call_soon_threadsafe(self._cancel_main)

    def end(self) -> None:
        """Make the thread end, and wait for it unless this is that thread."""
        if os.getpid() != self.pid:
            return
        self.ask_end()
        if threading.current_thread() is not self.thread:
            self.thread.join(CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        self._loop.set_exception_handler(_ignore_shared_wakeup)
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner, suppress(asyncio.CancelledError):
                runner.run(self._serve())
        except BaseException as error:
            # This thread's root: `opened` hands the error to the thread that connects.
            if not self.opened.done():
                self.opened.set_exception(error)
        finally:
            with self._lock:
                self.closed = True
            if not self.opened.done():
                self.opened.set_exception(RuntimeError(_CLOSED))
            atexit.unregister(self.end)

    async def _serve(self) -> None:
        self._main = asyncio.current_task()
        if self.closed:
            return
        async with connect_async(self._address, access=self._access, timeout_s=self._timeout_s) as client:
            self.opened.set_result(client)
            try:
                await asyncio.Event().wait()
            finally:
                with self._lock:
                    self.closed = True
                for task in self._calls:
                    task.cancel()
                if self._calls:
                    await asyncio.wait(self._calls, timeout=CLOSE_TIMEOUT_S)

    async def _tracked(self, call: Callable[[], Coroutine[None, None, T]]) -> T:
        task = asyncio.current_task()
        assert task is not None
        self._calls.add(task)
        try:
            return await call()
        finally:
            self._calls.discard(task)

    def _cancel_main(self) -> None:
        if self._main is not None:
            self._main.cancel()


_SESSIONS: Final = weakref.WeakSet[_Session]()
"""All sessions of this process and, in a forked child, of its parent: one that was open at the fork makes gRPC hang in
the child, which only this list shows. The one global of this room; nothing else reads it."""


def _refuse_running_loop(thread: threading.Thread | None) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(_IN_CALLBACK if threading.current_thread() is thread else _IN_LOOP)


def _ignore_shared_wakeup(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    """Ignore one error of gRPC: all loops of a process read one wake-up socket, and a loop that comes second finds it
    empty."""
    if not isinstance(context.get("exception"), BlockingIOError):
        loop.default_exception_handler(context)
