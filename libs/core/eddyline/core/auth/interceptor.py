"""Server interceptor for access: who calls, whether the key covers the call, quotas, and the audit log.

Order: after `eddyline.core.server.error_interceptor`, which makes refusals statuses, and before the role's own
interceptors. A caller sends `authorization: Bearer <secret>`, or has opened its connection with a certificate; a key
takes precedence over a certificate. A caller with neither is refused before its message is received.
I1: no handler runs before caller, scope and names are checked; of a stream of requests each message is checked as it comes.
I2: a call without a rule is refused. I3: only a role, by its key or certificate, calls for another principal. I4: after keys
were replaced, streams end whose key is gone or no longer covers them; unary calls in flight complete.
Cost: one digest and two look-ups a call, nothing for a message of a response stream.
Without keys and client certificates (possible on loopback only) every caller is ANONYMOUS, and only the audit log remains.
Threading: event loop.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, TypeVar

import grpc

from eddyline.core.auth.audit_log import OUTCOME_CANCELLED, OUTCOME_INTERNAL, OUTCOME_OK, write_audit_line
from eddyline.core.auth.grant import ANONYMOUS, PRINCIPAL_KEY, Grant, Scope, principal_from, scope_words, set_caller
from eddyline.core.auth.keys_file import SECRET_CHARS_MAX, KeyRing, certificate_names, digest_of
from eddyline.core.auth.open_calls import OpenCall, OpenCalls
from eddyline.core.auth.quotas import Quotas
from eddyline.core.auth.rules import RULES, Rule
from eddyline.core.errors import EddylineError, PermissionDenied, Unauthenticated
from eddyline.core.transport.handlers import HandlerCache, behaviour_of, handler_like, make_handler
from eddyline.core.transport.pushed_requests import CheckedRequests, as_pushed
from eddyline.core.transport.quick_gate import admit_any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence

    from eddyline.core.transport.handlers import Continuation, Handler
    from eddyline.core.transport.quick_gate import Admit, Certificate, GiveBack, Metadata

    Context = grpc.aio.ServicerContext[object, object]

AUTHORIZATION: Final = "authorization"
BEARER: Final = "bearer "

OPEN_CALLS_MAX: Final = 256
"""Calls in flight that need no key. gRPC: unbounded, and health streams could then take all calls that a server serves. A
load balancer, a supervisor and a person are a handful."""

_ANYBODY: Final = Grant("callers without a key", frozenset(), requests_max=OPEN_CALLS_MAX)

Request = TypeVar("Request")


class _AccessData(NamedTuple):
    """Access data of one call: grant and digest of its key, principal that a role calls for, name of its certificate."""

    grant: Grant | None = None
    digest: bytes = b""
    principal: str | None = None
    certificate: str = ""


_ACCESS: Final[ContextVar[_AccessData]] = ContextVar("_ACCESS")
"""Access data of the current task's call; interceptors and handler of a call run in one task."""
_REFUSAL: Final[ContextVar[EddylineError]] = ContextVar("_REFUSAL")


class AuthInterceptor(grpc.aio.ServerInterceptor):
    """Admits calls. `ring` None = no keys; `certificates` = each connection has a verified client certificate."""

    def __init__(
        self, *, ring: KeyRing | None = None, certificates: bool = False, quotas: Quotas | None = None
    ) -> None:
        self._ring = ring
        self._certificates = certificates
        self.quotas = quotas if quotas is not None else Quotas()
        self._calls = OpenCalls()
        self.version = 0
        """Number of times that the keys were replaced: what was decided by an earlier one is decided again."""
        self.refused_count = 0
        """Calls without a known key or certificate, since the start."""
        self._wrapped_handlers: HandlerCache[Handler] = HandlerCache(self._make_wrapped)
        self._refusing = make_handler(_refuse, request_streaming=True, response_streaming=True)

    @property
    def enforced(self) -> bool:
        """Return False if every caller that reaches the port may do everything."""
        return self._ring is not None or self._certificates

    def replace(self, ring: KeyRing) -> int:
        """Use other keys from now on, end the streams that they do not cover, and return how many ended."""
        self._ring = ring
        self.version += 1
        return self._calls.end_uncovered(
            lambda call: ring.of_digest(call.digest) if call.digest else ring.of_certificate(call.certificate)
        )

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler | None:
        method = handler_call_details.method
        rule = RULES.get(method)
        if not self.enforced:
            handler = await continuation(handler_call_details)
            return handler if handler is None or rule is None or rule.audited is None else self._wrap(handler, method)
        if rule is None:
            handler = await continuation(handler_call_details)
            return None if handler is None else self._refused(PermissionDenied(f"no key may call {method}"))
        if rule.is_open:
            return await self._open(continuation, handler_call_details)
        try:
            access = self._access_data(handler_call_details.invocation_metadata or ())
            if access.grant is not None:
                self.quotas.admit(access.grant, is_watch=rule.is_watch)
        except EddylineError as error:
            return self._refused(error)
        _ACCESS.set(access)
        handler = await continuation(handler_call_details)
        return None if handler is None else self._wrap(handler, method)

    async def _open(self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails) -> Handler | None:
        """Admit a call that needs no key. All such calls share one bound, so that they leave room for calls with a key."""
        try:
            self.quotas.admit(_ANYBODY, is_watch=False)
        except EddylineError as error:
            return self._refused(error)
        return await continuation(handler_call_details)

    def _wrap(self, handler: Handler, method: str) -> Handler:
        return self._wrapped_handlers.get(handler, method)

    def _refused(self, error: EddylineError) -> Handler:
        """Return a handler that refuses before a message is received: a handler of request streams reads messages itself."""
        _REFUSAL.set(error)
        return self._refusing

    def quick_admit(self, method: str, metadata: Metadata, certificate: Certificate) -> Admit | None:
        rule = RULES.get(method)
        if rule is None or rule.is_open or rule.is_watch or rule.audited is not None:
            return None
        if not self.enforced:
            return admit_any
        refused_count = self.refused_count
        try:
            access = self._access_data(metadata)
            key = self._of_certificate(certificate(), access) if access.grant is None else access.grant
            grant = _principal(key, access)
        finally:
            self.refused_count = refused_count  # the interceptor counts the call

        def admit(request: Any, _size: int) -> GiveBack:
            authorize(rule, method, grant, request)
            return self.quotas.enter(key, is_watch=False)

        return admit

    def _access_data(self, metadata: Iterable[Sequence[str | bytes]]) -> _AccessData:
        """Return the access data in a call's metadata.

        Raises:
            Unauthenticated: there is no known key, and certificates are not used.
        """
        authorization: str | None = None
        principal: str | None = None
        for key, value in metadata:
            if key == AUTHORIZATION:
                authorization = value if isinstance(value, str) else ""
            elif key == PRINCIPAL_KEY:
                principal = value if isinstance(value, str) else ""
        if self._ring is None or (authorization is None and self._certificates):
            return _AccessData(principal=principal)
        if authorization is None:
            self.refused_count += 1
            raise Unauthenticated("this role needs a key: metadata `authorization: Bearer <secret>`")
        secret = authorization[len(BEARER) :].strip() if authorization[: len(BEARER)].lower() == BEARER else ""
        digest = digest_of(secret) if 0 < len(secret) <= SECRET_CHARS_MAX else b""
        grant = self._ring.of_digest(digest) if digest else None
        if grant is None:
            self.refused_count += 1
            raise Unauthenticated("the key is not in this role's keys file")
        return _AccessData(grant, digest, principal)

    def _caller(self, context: Context, rule: Rule) -> Grant:
        """Return the grant of the caller or of the principal it calls for, and count a caller that came with a
        certificate."""
        if not self.enforced:
            return ANONYMOUS
        access = _ACCESS.get()
        grant = access.grant
        if grant is None:
            grant = self._of_certificate(context.auth_context(), access)
            self.quotas.admit(grant, is_watch=rule.is_watch)
        return _principal(grant, access)

    def _of_certificate(self, properties: Mapping[str, Iterable[bytes]], access: _AccessData) -> Grant:
        names = _names_of(properties)
        if self._ring is None:
            # Without a keys file every client with a certificate of the authority may do everything.
            return Grant(names[0][:255] if names else "certificate", frozenset(Scope))
        for name in names:
            if (grant := self._ring.of_certificate(name)) is not None:
                _ACCESS.set(access._replace(certificate=name))
                return grant
        self.refused_count += 1
        certificate = ", ".join(names)[:255]
        raise Unauthenticated(
            "this role needs a key, or a certificate whose name is in its keys file", certificate=certificate
        )

    def _make_wrapped(self, handler: Handler, method: str) -> Handler:
        rule, behaviour = RULES[method], behaviour_of(handler)
        if handler.response_streaming:
            stream = self._stream(behaviour, method, rule, steps=handler.request_streaming)
            return handler_like(handler, stream)
        assert not handler.request_streaming, f"{method}: the contract has no call of many requests and one answer"
        return handler_like(handler, self._unary(behaviour, method, rule))

    def _unary(
        self, behaviour: Callable[..., Awaitable[object]], method: str, rule: Rule
    ) -> Callable[[object, Context], Awaitable[object]]:
        # A coroutine only for the few audited requests: every other call saves one layer.
        def answer(request: object, context: Context) -> Awaitable[object]:
            grant = self._caller(context, rule)
            set_caller(grant)
            if rule.audited is not None and rule.audited(request):
                return audited(grant, request, context)
            authorize(rule, method, grant, request)
            return behaviour(request, context)

        async def audited(grant: Grant, request: object, context: Context) -> object:
            with _AuditEntry(method, grant, rule, request, context.peer()):
                authorize(rule, method, grant, request)
                return await behaviour(request, context)

        return answer

    def _stream(
        self, behaviour: Callable[..., object], method: str, rule: Rule, *, steps: bool = False
    ) -> Callable[[Any, Context], Awaitable[None]]:
        async def answer(request: Any, context: Context) -> None:
            grant = self._caller(context, rule)
            set_caller(grant)
            with _AuditEntry(method, grant, rule, request, context.peer(), quiet=steps or rule.audited is None):
                authorize(rule, method, grant, None if steps else request)
                access = _ACCESS.get(_AccessData())
                call = OpenCall(grant, rule, method, digest=access.digest, certificate=access.certificate)
                if steps:
                    request = _authorized(request, call)
                elif grant.prefixes:
                    call.names = tuple(rule.names(request))
                await self._calls.serve(call, _answers(behaviour(request, context), call, context))

        return answer


class _AuditEntry:
    """Writes a call and its outcome to the audit log, unless `quiet`."""

    def __init__(self, method: str, grant: Grant, rule: Rule, request: Any, peer: str, *, quiet: bool = False) -> None:
        self._method = method
        self._grant = grant
        self._rule = rule
        self._request = request
        self._peer = peer
        self._quiet = quiet or rule.audited is None or not rule.audited(request)

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if not self._quiet:
            names = self._rule.names(self._request)
            write_audit_line(self._method, self._grant, peer=self._peer, names=names, outcome=_outcome(error))


def authorize(rule: Rule, method: str, grant: Grant, request: Any) -> None:
    """Refuse a call that its caller may not make. `request` None = a stream of requests, checked one by one.

    Raises:
        PermissionDenied: with the scopes of which the caller needs one, or the name that no prefix covers.
    """
    needed = rule.scopes
    if grant.via and rule.for_roles:
        if rule.behalf is None:
            return
        needed = rule.behalf
    elif grant.is_role:
        return
    _need(needed, method, grant)
    if request is not None:
        authorize_message(rule, method, grant, request)


def authorize_message(rule: Rule, method: str, grant: Grant, request: Any) -> None:
    """Refuse a request that its caller may not send.

    Raises:
        PermissionDenied: with the missing scope, or the name that no prefix covers.
    """
    more = rule.more(request)
    if more is not None and not grant.is_role:
        _need(frozenset((more,)), method, grant)
    if grant.prefixes:
        grant.check(*rule.names(request))


def _need(scopes: frozenset[Scope], method: str, grant: Grant) -> None:
    if scopes.isdisjoint(grant.scopes):
        names, call = scope_words(scopes), method.rpartition("/")[2]
        raise PermissionDenied(
            f"{grant.name} may not call {call}: it needs the scope {names.replace(',', ' or ')}",
            principal=grant.name,
            method=call,
            scopes=names,
        )


def _authorized(steps: AsyncIterator[Request], call: OpenCall) -> AsyncIterator[Request]:
    def check(step: Request) -> None:
        authorize_message(call.rule, call.method, call.grant, step)
        if call.grant.prefixes:
            call.names = (*call.names, *call.rule.names(step))

    pushed = as_pushed(steps)
    return _each_checked(steps, check) if pushed is None else CheckedRequests(pushed, check)


async def _each_checked(steps: AsyncIterator[Request], check: Callable[[Request], None]) -> AsyncIterator[Request]:
    async for step in steps:
        check(step)
        yield step


async def _answers(answers: Any, call: OpenCall, context: Context) -> None:
    """Send the messages that a handler yields, or let the handler send them."""
    if not isinstance(answers, AsyncGenerator):
        await answers
        return
    async with aclosing(answers):
        async for message in answers:
            if call.begun:
                await context.write(message)
            else:
                await call.begin(context.write(message))


def _principal(grant: Grant, access: _AccessData) -> Grant:
    """Return the grant of the principal that a caller calls for; its own if it calls for itself.

    Raises:
        PermissionDenied: the caller is not a role.
    """
    if access.principal is None:
        return grant
    if not grant.is_role:
        raise PermissionDenied(
            f"{grant.name} is not a role, and may not call for another principal", principal=grant.name
        )
    return principal_from(access.principal, via=grant.name)


def _names_of(properties: Mapping[str, Iterable[bytes]]) -> list[str]:
    """Return the names in the properties of a certificate."""
    commons, uris, dns = (
        [value.decode("utf-8", "replace") for value in properties.get(field) or ()]
        for field in ("x509_common_name", "peer_uri", "peer_dns")
    )
    return certificate_names(common_name=next(iter(commons), ""), uris=uris, dns=dns)


async def _refuse(_requests: object, _context: object) -> NoReturn:
    raise _REFUSAL.get()


def _outcome(error: BaseException | None) -> str:
    if error is None:
        return OUTCOME_OK
    if isinstance(error, EddylineError):
        return error.reason
    return OUTCOME_INTERNAL if isinstance(error, Exception) else OUTCOME_CANCELLED
