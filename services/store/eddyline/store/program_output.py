"""Standard output of the store's offline programs (`fsck`, `export`).

Threading: main thread.
"""

from __future__ import annotations

import os
import sys

from eddyline.core.runtime.text import escaped


class UnsaidError(Exception):
    """Standard output could not be written; the reason as text, empty = its reader is gone."""


def say(line: str) -> None:
    """Write a line to standard output and flush it.

    Raises:
        UnsaidError: it is closed, full, or its reader is gone.
    """
    if sys.stdout is None:
        raise UnsaidError("standard output is closed")
    try:
        sys.stdout.write(escaped(line) + "\n")
        sys.stdout.flush()
    except OSError as error:
        # The buffered rest is dropped: Python would fail on it again at exit, with a code of its own.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        is_gone = isinstance(error, BrokenPipeError)
        raise UnsaidError("" if is_gone else f"standard output cannot be written: {error.strerror}") from None
