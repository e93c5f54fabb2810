"""Process memory on Linux with glibc: reads the resident bytes, and returns free memory to the kernel.

glibc keeps freed memory for the next request, in one arena a thread, and raises its threshold for separate (mmap) blocks
whenever such a block is freed: after a burst of messages of 64 MiB a store of 100 MiB was measured at 4 GiB. So blocks of 1
MiB and more always are separate ones, which return to the kernel at once, and there are two arenas. With another C library
or kernel nothing is tuned, and `resident_bytes` is 0.
Threading: any.
"""

from __future__ import annotations

import ctypes
import gc
import os
from contextlib import suppress
from typing import Final

MMAP_THRESHOLD_BYTES: Final = 1 << 20
"""[glibc: 128 KiB, growing to 32 MiB] Batches of 100 KB and groups of a few of them stay in the heap, which is faster; a
fixed threshold costs page faults (0.1 ms a MiB) only for messages above it."""
ARENAS_MAX: Final = 2
"""[glibc: 8 a core] One for the event loop, one shared by gRPC's and RocksDB's threads."""
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_STATM: Final = "/proc/self/statm"


class ProcessMemory:
    """Resident memory of this process, by the kernel's count."""

    def __init__(self) -> None:
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._statm = -1
        with suppress(OSError):
            self._statm = os.open(_STATM, os.O_RDONLY | os.O_CLOEXEC)
        self._libc = ctypes.CDLL(None)

    def resident_bytes(self) -> int:
        """Resident bytes; 0 = unknown. Takes 5 us: the kernel's own counter, no disk."""
        if self._statm < 0:
            return 0
        return int(os.pread(self._statm, 128, 0).split()[1]) * self._page_bytes

    def give_back(self) -> None:
        """Free reference cycles, then return free pages to the kernel. Blocking; the first part holds the interpreter's
        lock for 10 ms, with 100 000 topics 100 ms.

        An ended stream leaves a cycle of its task group's frame and error, which holds the last message: 64 MiB that the
        collector, which counts objects, does not notice."""
        gc.collect()
        if hasattr(self._libc, "malloc_trim"):
            self._libc.malloc_trim(0)

    def close(self) -> None:
        """Close the kernel's counter file."""
        if self._statm >= 0:
            os.close(self._statm)
            self._statm = -1


def tune_allocator() -> None:
    """Tune glibc to keep little freed memory. Call once, before there are threads."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)
        libc.mallopt(_M_ARENA_MAX, ARENAS_MAX)
