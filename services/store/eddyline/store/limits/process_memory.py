"""What this process holds of the machine's memory, and giving back what it does not need: Linux's and glibc's words for it.

glibc keeps what was freed for the next request, in an arena a thread, and makes its bound for blocks of their own larger
whenever such a block is freed: after a burst of messages of 64 MiB a store of 100 MiB was seen to hold 4 GiB. So a block of
1 MiB and more is always one of its own, which goes back at once, and there are two arenas. Where the C library or the
kernel is another one nothing is done, and nothing is known: `resident_bytes` is 0.
Threading: any.
"""

from __future__ import annotations

import ctypes
import gc
import os
from contextlib import suppress
from typing import Final

MMAP_THRESHOLD_BYTES: Final = 1 << 20
"""[128 KiB, growing to 32 MiB] Batches of 100 KB and groups of a few of them stay in the heap, which is faster; a fixed
bound costs page faults (0.1 ms a MiB) for messages above it only."""
ARENAS_MAX: Final = 2
"""[8 a core] One for the loop, one for gRPC's and RocksDB's threads to share."""
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_STATM: Final = "/proc/self/statm"


class ProcessMemory:
    """The memory of this process."""

    def __init__(self) -> None:
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._statm = -1
        with suppress(OSError):
            self._statm = os.open(_STATM, os.O_RDONLY | os.O_CLOEXEC)
        self._libc = ctypes.CDLL(None)

    def resident_bytes(self) -> int:
        """Bytes resident; 0 = not known. 5 us: the kernel's own counter, no disk."""
        if self._statm < 0:
            return 0
        return int(os.pread(self._statm, 128, 0).split()[1]) * self._page_bytes

    def give_back(self) -> None:
        """Give back what nobody uses: objects that hold each other, then free pages. Blocking, the first part with the
        interpreter's lock: 10 ms, and 100 with 100 000 topics.

        A stream that was ended leaves a cycle, its task group's frame and error, and in it the last message: 64 MiB that
        the collector, which counts objects, does not see.
        """
        gc.collect()
        if hasattr(self._libc, "malloc_trim"):
            self._libc.malloc_trim(0)

    def close(self) -> None:
        """Let go of what it reads."""
        if self._statm >= 0:
            os.close(self._statm)
            self._statm = -1


def tune_allocator() -> None:
    """Tell the allocator to keep little of what is freed; once, before there are threads."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)
        libc.mallopt(_M_ARENA_MAX, ARENAS_MAX)
