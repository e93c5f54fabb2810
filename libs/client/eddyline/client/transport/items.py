"""The iterator that a method of the client yields: a cancelled read does not spend it.

An async generator that is cancelled while it waits is over, and `async for` over it then ends as if all had come. These
do not: I1: where the work has a place, the next read goes on at it, behind the last item that was given. I2: where it
has none (a scan of one point, a check, an export), and after an error, the next read raises `StreamOrder`.
I3: `StopAsyncIteration` means that all came, or that the reader closed it.
Work yields batches of items; the iterator waits for it once a batch. A batch counts as given when it was yielded: I1
holds, since a read that waits, and so can be cancelled, has given all of the batch before.
Threading: one reader at a time.
"""

from __future__ import annotations

from contextlib import aclosing
from functools import wraps
from typing import TYPE_CHECKING, Generic, ParamSpec, Self, TypeVar

from eddyline.core.errors import StreamOrder

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator, Sequence

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
P = ParamSpec("P")


class Items(Generic[T_co]):
    """An iterator to be read by `async for`; a reader that breaks off closes it with `aclose`
    (`contextlib.aclosing`)."""

    def __init__(self, begin: Callable[[], AsyncGenerator[Sequence[T_co], None]], *, once: str = "") -> None:
        """`begin` starts the work at its place, again after each break, and yields batches of items. `once` = its name,
        where it has no place."""
        self._begin = begin
        self._once = once
        self._batches: AsyncGenerator[Sequence[T_co], None] | None = None
        self._given: Iterator[T_co] = iter(())
        self._began = False
        self._over = False

    @classmethod
    def one_by_one(cls, begin: Callable[[], AsyncGenerator[T_co, None]], *, once: str = "") -> Self:
        """Make an iterator of work that brings its items one by one. The arguments are as above."""
        return cls(lambda: _batches_of_one(begin), once=once)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T_co:
        """The next item.

        Raises:
            EddylineError: what the method that gave the iterator names. StreamOrder: it is spent.
        """
        while True:
            for item in self._given:
                return item
            self._given = iter(await self._next_batch())

    def at_hand(self) -> Iterator[T_co]:
        """Return the items that are there without waiting, the rest of a batch; taken from it, they are given."""
        return self._given

    async def _next_batch(self) -> Sequence[T_co]:
        items = self._batches
        if items is None:
            items = self._start()
        try:
            return await anext(items)
        except StopAsyncIteration:
            self._batches, self._over = None, True
            raise
        except BaseException:
            # Whatever leaves a generator, a cancellation too, has ended it.
            self._batches = None
            raise

    async def aclose(self) -> None:
        """End it. Harmless when repeated."""
        self._over = True
        self._given = iter(())
        items, self._batches = self._batches, None
        if items is not None:
            await items.aclose()

    def _start(self) -> AsyncGenerator[Sequence[T_co], None]:
        if self._over:
            raise StopAsyncIteration
        if self._once and self._began:
            raise StreamOrder(
                f"this iterator of {self._once} cannot continue: a read of it was cancelled or failed, and its point "
                f"in time has passed; call {self._once} again",
                call=self._once,
            )
        self._began = True
        self._batches = self._begin()
        return self._batches


async def _batches_of_one(begin: Callable[[], AsyncGenerator[T, None]]) -> AsyncGenerator[Sequence[T], None]:
    async with aclosing(begin()) as items:
        async for item in items:
            yield (item,)


def read_once(name: str) -> Callable[[Callable[P, AsyncGenerator[T, None]]], Callable[P, Items[T]]]:
    """For a generator of the call `name` that has no place to go on at."""

    def decorate(generate: Callable[P, AsyncGenerator[T, None]]) -> Callable[P, Items[T]]:
        @wraps(generate)
        def begin(*args: P.args, **kwargs: P.kwargs) -> Items[T]:
            return Items.one_by_one(lambda: generate(*args, **kwargs), once=name)

        return begin

    return decorate


def read_once_in_batches(
    name: str,
) -> Callable[[Callable[P, AsyncGenerator[Sequence[T], None]]], Callable[P, Items[T]]]:
    """The same for a generator of batches of items."""

    def decorate(generate: Callable[P, AsyncGenerator[Sequence[T], None]]) -> Callable[P, Items[T]]:
        @wraps(generate)
        def begin(*args: P.args, **kwargs: P.kwargs) -> Items[T]:
            return Items(lambda: generate(*args, **kwargs), once=name)

        return begin

    return decorate
