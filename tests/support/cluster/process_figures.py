"""The kernel's figures of a process, by default of this one: memory and processor time. Linux only."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple


def resident_bytes(pid: int | str = "self") -> int:
    """Of the machine's memory, held now."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def peak_bytes(pid: int | str = "self") -> int:
    """The most that was held since the start, or since the peak was begun anew."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the kernel tells no peak")


def fine_processor_s(pid: int) -> float:
    """Processor time used by the threads that a process has now, to the nanosecond; `processor_s` counts steps of 10 ms."""
    files = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(file.read_text(encoding="utf-8").split()[0]) for file in files) / 1e9


def processor_s(pid: int | str = "self") -> float:
    """Processor time used, in user and kernel."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class MemoryBytes(NamedTuple):
    """Memory of a process: `resident`, with all pages that it shares; `proportional`, with its part of each shared page;
    `unique`, without shared ones."""

    resident: float
    proportional: float
    unique: float


def memory_bytes(pid: int | str = "self") -> MemoryBytes:
    """Memory by the kernel's sum over the process's mappings."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()[1:]
    kib = {name: int(size.split()[0]) for name, _, size in (line.partition(":") for line in lines)}
    unique = kib["Private_Clean"] + kib["Private_Dirty"]
    return MemoryBytes(kib["Rss"] * 1024, kib["Pss"] * 1024, unique * 1024)
