"""Methods of asyncio classes as blocking methods of the same name, parameters, docstring and result type.

    class Client:
        get = blocking(AioClient.get)          # a coroutine's result
        read = made(AioClient.read, Items)     # an object made on the loop, in its blocking form

Type checkers see the parameters through the ParamSpec, `inspect.signature` and `help` through `__wrapped__`. A new
parameter of the asyncio method is one here too.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from eddyline.client.sync.loop_thread import LoopThread

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S")
A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)


class Blocking(Protocol[A_co]):
    """A class whose methods `blocking` and `made` make."""

    @property
    def _loop(self) -> LoopThread:
        """The thread that runs the calls."""
        ...

    def _target(self) -> A_co:
        """Return the asyncio object; called on the loop's thread."""
        ...


def blocking(
    method: Callable[Concatenate[A, P], Coroutine[None, None, T]],
) -> Callable[Concatenate[Blocking[A], P], T]:
    """Make the blocking form of a coroutine method."""

    @wraps(method)
    def call(self: Blocking[A], /, *args: P.args, **kwargs: P.kwargs) -> T:
        async def on_loop() -> T:
            return await method(self._target(), *args, **kwargs)

        return self._loop.run(on_loop)

    return call


def made(
    method: Callable[Concatenate[A, P], T], form: Callable[[LoopThread, T], S]
) -> Callable[Concatenate[Blocking[A], P], S]:
    """Make the blocking form of a method that returns an iterator, a watch or a stream; `form` wraps what it
    returns."""

    @wraps(method)
    def call(self: Blocking[A], /, *args: P.args, **kwargs: P.kwargs) -> S:
        async def on_loop() -> T:
            # On the loop's thread, since channels opened by it belong to that loop.
            return method(self._target(), *args, **kwargs)

        return form(self._loop, self._loop.run(on_loop))

    return call
