"""Calls answered without a task: past interceptors, handlers' coroutines and contexts, where the wire can do so.

A call is quick if its request came whole, every gate admits it, and the role has its answer at hand or knows the future that
has it. All others go to the method's own handler, through the interceptors: refusals by a gate, requests that cannot be
parsed, audited ones, those that must wait. So reasons, counts and the audit log of a refusal are the interceptors' own.
I1: no quick handler runs before each gate has admitted the request. I2: what a gate counts is given back once, when the
answer is known or the call is left to the interceptors; a call that its client ends counts until then, as its work goes on.
I3: a verdict is kept with the metadata block and the connection that it was made for, and made again once the access rules
have changed. I4: a request reaches its handler once: an error of a quick handler is the call's status.
Threading: event loop.
"""

from __future__ import annotations

from asyncio import CancelledError
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from google.protobuf.message import DecodeError

from eddyline.core.errors import EddylineError
from eddyline.core.server.error_interceptor import status_of
from eddyline.core.transport.quick_gate import QuickGate, admit_any

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from eddyline.core.server.error_interceptor import NewId
    from eddyline.core.transport.quick_gate import Admit, GiveBack, Metadata

QUICK_BYTES_MAX: Final = 1 << 20
"""Larger requests go to their handlers: they have a bound of their own there, and a task is not what they cost."""


class AccessGate(QuickGate, Protocol):
    """The gate whose rules change."""

    @property
    def version(self) -> int:
        """Return the number of changes of its rules."""


class Later(NamedTuple):
    """An answer that a future will have; `encode` returns its bytes."""

    future: asyncio.Future[Any]
    encode: Callable[[Any], bytes]


class QuickMethod(NamedTuple):
    """How a method's calls are answered at once.

    `answer` gets the parsed request and the call's metadata, and must not wait; None = the method's own handler answers. It
    must not have changed anything then. A domain error that it raises, or that the future has, is the call's status.
    """

    parse_request: Callable[[bytes], Any]
    answer: Callable[[Any, Metadata], bytes | Later | None]


class QuickOpening(Protocol):
    """Path and metadata of calls of one connection that open alike."""

    verdict: object

    @property
    def path(self) -> str:
        """Return the method's full name."""

    @property
    def metadata(self) -> Metadata:
        """Return the metadata."""


class QuickConnection(Protocol):
    """A caller's connection."""

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """Return the properties of the caller's certificate."""


class QuickCall(Protocol):
    """A call of the wire's."""

    opening: Any
    """A `QuickOpening`."""
    connection: Any
    """A `QuickConnection`."""

    def defer(self) -> None:
        """Answer later."""

    def answer(self, message: bytes) -> None:
        """Send the answer and status OK; nothing if the call is over."""

    def finish(self, code: int, message: str = "", metadata: Metadata = ()) -> None:
        """Send a status; nothing if the call is over."""


class _GatesVerdict:
    """What the gates decided for one opening, by the access rules of `version`. `admits` None = nothing is quick."""

    __slots__ = ("admits", "version")

    def __init__(self, version: int, admits: tuple[Admit, ...] | None) -> None:
        self.version = version
        self.admits = admits


class QuickCalls:
    """Quick methods behind the gates of one server."""

    def __init__(self, access: AccessGate, interceptors: Sequence[object], *, new_id: NewId) -> None:
        """`interceptors` = all others, in the order in which calls pass them. One that is no gate makes no call quick."""
        self._access = access
        gates = [interceptor for interceptor in interceptors if isinstance(interceptor, QuickGate)]
        self._gates = (access, *gates) if len(gates) == len(interceptors) else None
        self._new_id = new_id

    def handler(self, method: QuickMethod) -> Callable[[QuickCall, bytes], bytes | None]:
        """Return a quick handler for the wire."""

        def answer(call: QuickCall, message: bytes) -> bytes | None:
            return self._answer(method, call, message)

        return answer

    def _answer(self, method: QuickMethod, call: QuickCall, message: bytes) -> bytes | None:
        admits = self._admits(call)
        if admits is None or len(message) > QUICK_BYTES_MAX:
            return None
        given: list[GiveBack] = []
        result: bytes | Later | None = None
        try:
            try:
                request = method.parse_request(message)
                for admit in admits:
                    give_back = admit(request, len(message))
                    if give_back is None:
                        return None
                    given.append(give_back)
            except (DecodeError, EddylineError):
                return None
            try:
                result = method.answer(request, call.opening.metadata)
            except Exception as error:
                self._fail(call, error)
                return None
            if isinstance(result, Later):
                self._defer(call, result, given)
                given = []
                return None
            return result
        finally:
            for give_back in given:
                give_back()

    def _admits(self, call: QuickCall) -> tuple[Admit, ...] | None:
        opening = call.opening
        verdict = opening.verdict
        if not isinstance(verdict, _GatesVerdict) or verdict.version != self._access.version:
            verdict = opening.verdict = _GatesVerdict(self._access.version, self._decide(call))
        return verdict.admits

    def _decide(self, call: QuickCall) -> tuple[Admit, ...] | None:
        opening, certificate = call.opening, call.connection.auth_context
        if self._gates is None:
            return None
        admits = []
        try:
            for gate in self._gates:
                admit = gate.quick_admit(opening.path, opening.metadata, certificate)
                if admit is None:
                    return None
                if admit is not admit_any:
                    admits.append(admit)
        except EddylineError:
            return None
        return tuple(admits)

    def _defer(self, call: QuickCall, later: Later, given: list[GiveBack]) -> None:
        call.defer()

        def done(future: asyncio.Future[Any]) -> None:
            for give_back in given:
                give_back()
            error = CancelledError() if future.cancelled() else future.exception()
            if error is None:
                try:
                    call.answer(later.encode(future.result()))
                    return
                except Exception as failed:  # the caller learns an id, as of any other defect
                    error = failed
            self._fail(call, error)

        if later.future.done():
            done(later.future)
        else:
            later.future.add_done_callback(done)

    def _fail(self, call: QuickCall, error: BaseException) -> None:
        code, message, metadata = status_of(error, call.opening.path, self._new_id)
        call.finish(int(code.value[0]), message, metadata)
