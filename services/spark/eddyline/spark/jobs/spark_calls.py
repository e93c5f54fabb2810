"""Calls to Spark beside the work: from threads of their own, for a bounded time.

Py4J has one connection a thread, and one that was interrupted in a call still waits for that call's answer: the next call
on it, in a `finally` say, gets the wrong answer or blocks until the first is over, and what it raises hides what was under
way. A thread of its own has a connection of its own.
Failure: of a call beside is passed over: what it would give back goes with the session.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from pyspark import StorageLevel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame

ASIDE_S: Final = 10.0
"""How long a call beside is waited for. Giving back takes milliseconds; a session stops within two seconds or so, and one
whose JVM is gone, never."""
ROWS_PER_TASK: Final = 250_000
"""Of a shuffle. Elsewhere (Spark) 200 tasks whatever is in them, each of which costs some 20 ms and more on a busy machine;
rows of keys and hashes are some 100 bytes."""
TASKS_MAX: Final = 2_000
"""Above, the bookkeeping of blocks costs more than larger tasks."""
_TASKS: Final = "spark.sql.shuffle.partitions"
_PLANNING: Final = threading.Lock()
"""One job at a time changes a session's setting, or the next would take a changed one for the session's own."""


def call_with_timeout(call: Callable[[], object]) -> None:
    """Make a call from another thread, and wait for it, for a bounded time."""

    def run() -> None:
        with suppress(Exception):
            call()

    thread = threading.Thread(target=run, name="call_with_timeout", daemon=True)
    thread.start()
    thread.join(ASIDE_S)


@contextmanager
def on_disk(frame: DataFrame, *, rows: int) -> Iterator[DataFrame]:
    """The frame, kept on the executors' disks from its first action on, and given back. Its shuffles have tasks for `rows`.

    Spark shares nothing out anew in what is kept. It plans it in `persist`, so the session's own setting is back after that.
    """
    conf = frame.sparkSession.conf
    with _PLANNING:
        before = conf.get(_TASKS)
        conf.set(_TASKS, str(tasks_for(rows)))
        try:
            held = frame.persist(StorageLevel.DISK_ONLY)
        finally:
            call_with_timeout(lambda: conf.set(_TASKS, str(before)))
    try:
        yield held
    finally:
        call_with_timeout(held.unpersist)


def tasks_for(rows: int) -> int:
    """How many tasks share so many rows of a shuffle."""
    return max(1, min(TASKS_MAX, -(-rows // ROWS_PER_TASK)))
