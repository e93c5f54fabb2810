"""pyarrow is imported with a store's first topic: reads of segments and folds need it, and a store without topics does not
pay for it, 55 ms of processor time and 35 MiB of memory (`make bench ROWS=P25`).

I1: a store that has a topic has pyarrow: no read or sealing fails for want of an import's descriptors or memory.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from eddyline.core.errors import Throttled
from eddyline.core.records.arrow import arrow_schema
from eddyline.store.storage.wal.scan import SHORTAGE_RETRY_AFTER_MS

if TYPE_CHECKING:
    from eddyline.store.runtime.workers import Worker


async def import_arrow(worker: Worker) -> None:
    """Import pyarrow, if it is not yet, on a worker's thread.

    Raises:
        Throttled: the process is short of descriptors or memory; a later call tries again.
    """
    try:
        await worker.submit(_import)
    except (OSError, ImportError, MemoryError) as error:
        raise Throttled(
            f"the store cannot make its first topic: {error}. Try again once it has the resource",
            retryAfterMs=SHORTAGE_RETRY_AFTER_MS,
        ) from error


def _import() -> None:
    import_module("pyarrow.compute")
    arrow_schema()
