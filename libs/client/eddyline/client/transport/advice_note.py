"""Advice added to errors that a program does not handle, so that its traceback ends with what to do."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from eddyline.core.errors import EddylineError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@asynccontextmanager
async def advising() -> AsyncIterator[None]:
    """Note the advice of whatever error leaves it."""
    try:
        yield
    except Exception as error:
        add_advice(error)
        raise


def add_advice(error: BaseException) -> None:
    """Note the advice of an error, and of each error of a group, once."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            add_advice(inner)
    elif isinstance(error, EddylineError) and error.advice and error.advice not in getattr(error, "__notes__", ()):
        error.add_note(error.advice)
