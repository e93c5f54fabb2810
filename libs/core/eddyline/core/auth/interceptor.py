"""The gate of every role: who calls, whether the key covers the call, how much of it at once; and the audit log.

Order: behind `eddyline.core.server.error_interceptor`, which makes refusals statuses, before whatever else a role has. A
caller shows `authorization: Bearer <secret>`, or the certificate that its connection was opened with; a key goes before a
certificate. Who shows nothing that is known is refused before its message is received.
I1: no handler runs before its caller, scope and names were judged; of a stream of requests each message is judged as it
comes. I2: a call that no rule names is refused. I3: who has no role's key or certificate speaks for nobody else. I4: once
keys are replaced, streams whose key is gone, or covers them no more, end; calls of one answer come to their end, which is
near.
Cost: a digest and two look-ups a call, nothing a message of a stream of answers.
Without keys and client certificates (loopback alone) everybody is NOBODY, and only the audit log is left of this.
Threading: event loop.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, TypeVar

import grpc

from eddyline.core.auth.audit_log import OUTCOME_CANCELLED, OUTCOME_INTERNAL, OUTCOME_OK, audit
from eddyline.core.auth.grant import ANONYMOUS, PRINCIPAL_KEY, Grant, Scope, principal_from, scope_words, set_caller
from eddyline.core.auth.keys_file import SECRET_CHARS_MAX, KeyRing, certificate_names, digest_of
from eddyline.core.auth.open_calls import OpenCall, OpenCalls
from eddyline.core.auth.quotas import Quotas
from eddyline.core.auth.rules import RULES, Rule
from eddyline.core.errors import EddylineError, PermissionDenied, Unauthenticated
from eddyline.core.transport.handlers import HandlerCache, behaviour_of, handler_like, make_handler

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection

    from eddyline.core.transport.handlers import Continuation, Handler

    Context = grpc.aio.ServicerContext[object, object]

AUTHORIZATION: Final = "authorization"
BEARER: Final = "bearer "

OPEN_CALLS_MAX: Final = 256
"""Calls that need no key, at once: elsewhere unbounded, and streams of health would take all that a server serves. A
balancer, a supervisor and a person are a handful."""

_ANYBODY: Final = Grant("anybody without a key", frozenset(), requests_max=OPEN_CALLS_MAX)

Request = TypeVar("Request")


class _Shown(NamedTuple):
    """What a caller showed with its metadata."""

    grant: Grant | None = None
    digest: bytes = b""
    principal: str | None = None
    certificate: str = ""


_SHOWN: Final[ContextVar[_Shown]] = ContextVar("_SHOWN")
"""Of the call whose task it is; a call's interceptors and its handler are one task."""
_REFUSAL: Final[ContextVar[EddylineError]] = ContextVar("_REFUSAL")


class AuthInterceptor(grpc.aio.ServerInterceptor):
    """Lets calls in. `ring` None = there are no keys; `certificates` = each connection brought one that was verified."""

    def __init__(
        self, *, ring: KeyRing | None = None, certificates: bool = False, quotas: Quotas | None = None
    ) -> None:
        self._ring = ring
        self._certificates = certificates
        self.quotas = quotas if quotas is not None else Quotas()
        self._calls = OpenCalls()
        self.refused_count = 0
        """Calls of nobody that is known, since the start."""
        self._wrapped_handlers: HandlerCache[Handler] = HandlerCache(self._make_wrapped)
        self._refusing = make_handler(_refuse, request_streaming=True, response_streaming=True)

    @property
    def enforced(self) -> bool:
        """False = whoever reaches the port may do everything."""
        return self._ring is not None or self._certificates

    @property
    def open_streams(self) -> Collection[OpenCall]:
        """Streams that are being served, of callers that are known."""
        return self._calls.open

    def replace(self, ring: KeyRing) -> int:
        """Go by other keys from now on. Streams that they do not cover end; how many."""
        self._ring = ring
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
            return None if handler is None else self._refused(PermissionDenied(f"{method} is open to nobody"))
        if rule.is_open:
            return await self._open(continuation, handler_call_details)
        try:
            shown = self._shown(handler_call_details)
            if shown.grant is not None:
                self.quotas.admit(shown.grant, is_watch=rule.is_watch)
        except EddylineError as error:
            return self._refused(error)
        _SHOWN.set(shown)
        handler = await continuation(handler_call_details)
        return None if handler is None else self._wrap(handler, method)

    async def _open(self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails) -> Handler | None:
        """A call that needs no key: all of them together are bounded, so that they leave room for those with one."""
        try:
            self.quotas.admit(_ANYBODY, is_watch=False)
        except EddylineError as error:
            return self._refused(error)
        return await continuation(handler_call_details)

    def _wrap(self, handler: Handler, method: str) -> Handler:
        return self._wrapped_handlers.get(handler, method)

    def _refused(self, error: EddylineError) -> Handler:
        """A handler that refuses before the message is received: of the kind that asks for its messages itself."""
        _REFUSAL.set(error)
        return self._refusing

    def _shown(self, details: grpc.HandlerCallDetails) -> _Shown:
        """What the call's metadata says of its caller.

        Raises:
            Unauthenticated: nothing that we know, and there is no certificate to go by.
        """
        authorization: str | None = None
        principal: str | None = None
        for key, value in details.invocation_metadata or ():
            if key == AUTHORIZATION:
                authorization = value if isinstance(value, str) else ""
            elif key == PRINCIPAL_KEY:
                principal = value if isinstance(value, str) else ""
        if self._ring is None or (authorization is None and self._certificates):
            return _Shown(principal=principal)
        if authorization is None:
            self.refused_count += 1
            raise Unauthenticated("this role needs a key: metadata `authorization: Bearer <secret>`")
        secret = authorization[len(BEARER) :].strip() if authorization[: len(BEARER)].lower() == BEARER else ""
        digest = digest_of(secret) if 0 < len(secret) <= SECRET_CHARS_MAX else b""
        grant = self._ring.of_digest(digest) if digest else None
        if grant is None:
            self.refused_count += 1
            raise Unauthenticated("the key is not one of this role's keys")
        return _Shown(grant, digest, principal)

    def _caller(self, context: Context, rule: Rule) -> Grant:
        """Who calls, by what it showed, its certificate, and whom it speaks for; counted, where it is not yet."""
        if not self.enforced:
            return ANONYMOUS
        shown = _SHOWN.get()
        grant = shown.grant
        if grant is None:
            grant = self._of_certificate(context, shown)
            self.quotas.admit(grant, is_watch=rule.is_watch)
        if shown.principal is None:
            return grant
        if not grant.is_role:
            raise PermissionDenied(f"{grant.name} is no role, and speaks for nobody else", principal=grant.name)
        return principal_from(shown.principal, via=grant.name)

    def _of_certificate(self, context: Context, shown: _Shown) -> Grant:
        names = _names_of(context)
        if self._ring is None:
            # Without a keys file everybody with a certificate of the authority may do everything.
            return Grant(names[0][:255] if names else "certificate", frozenset(Scope))
        for name in names:
            if (grant := self._ring.of_certificate(name)) is not None:
                _SHOWN.set(shown._replace(certificate=name))
                return grant
        self.refused_count += 1
        told = ", ".join(names)[:255]
        raise Unauthenticated("this role needs a key, or a certificate with a name that it knows", certificate=told)

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
        # Not a coroutine but for the few that are audited: one layer less, of every call.
        def answer(request: object, context: Context) -> Awaitable[object]:
            grant = self._caller(context, rule)
            set_caller(grant)
            if rule.audited is not None and rule.audited(request):
                return audited(grant, request, context)
            authorize(rule, method, grant, request)
            return behaviour(request, context)

        async def audited(grant: Grant, request: object, context: Context) -> object:
            with _Audited(method, grant, rule, request, context.peer()):
                authorize(rule, method, grant, request)
                return await behaviour(request, context)

        return answer

    def _stream(
        self, behaviour: Callable[..., object], method: str, rule: Rule, *, steps: bool = False
    ) -> Callable[[Any, Context], Awaitable[None]]:
        async def answer(request: Any, context: Context) -> None:
            grant = self._caller(context, rule)
            set_caller(grant)
            with _Audited(method, grant, rule, request, context.peer(), quiet=steps or rule.audited is None):
                authorize(rule, method, grant, None if steps else request)
                shown = _SHOWN.get(_Shown())
                call = OpenCall(grant, rule, method, digest=shown.digest, certificate=shown.certificate)
                if steps:
                    request = _judged(request, call)
                elif grant.prefixes:
                    call.names = tuple(rule.names(request))
                await self._calls.serve(call, _answers(behaviour(request, context), call, context))

        return answer


class _Audited:
    """Tells a call and what became of it, unless it is `quiet`."""

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
            audit(self._method, self._grant, peer=self._peer, names=names, outcome=_outcome(error))


def authorize(rule: Rule, method: str, grant: Grant, request: Any) -> None:
    """Refuse a call that its caller may not make. `request` None = its messages are still to come.

    Raises:
        PermissionDenied: with the scopes of which one is missing, or the name that is not covered.
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
    """Refuse a message that its caller may not send.

    Raises:
        PermissionDenied.
    """
    more = rule.more(request)
    if more is not None and not grant.is_role:
        _need(frozenset((more,)), method, grant)
    if grant.prefixes:
        grant.check(*rule.names(request))


def _need(scopes: frozenset[Scope], method: str, grant: Grant) -> None:
    if scopes.isdisjoint(grant.scopes):
        words, call = scope_words(scopes), method.rpartition("/")[2]
        raise PermissionDenied(
            f"{grant.name} may not call {call}: it needs the scope {words.replace(',', ' or ')}",
            principal=grant.name,
            method=call,
            scopes=words,
        )


async def _judged(steps: AsyncIterator[Request], call: OpenCall) -> AsyncIterator[Request]:
    async for step in steps:
        authorize_message(call.rule, call.method, call.grant, step)
        if call.grant.prefixes:
            call.names = (*call.names, *call.rule.names(step))
        yield step


async def _answers(answers: Any, call: OpenCall, context: Context) -> None:
    """Send what a handler gives, or let it send."""
    if not isinstance(answers, AsyncGenerator):
        await answers
        return
    async with aclosing(answers):
        async for message in answers:
            if call.begun:
                await context.write(message)
            else:
                await call.begin(context.write(message))


def _names_of(context: Context) -> list[str]:
    """Of the certificate that the call's connection was opened with."""
    verified = context.auth_context()
    commons, uris, dns = (
        [value.decode("utf-8", "replace") for value in verified.get(field) or ()]
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
