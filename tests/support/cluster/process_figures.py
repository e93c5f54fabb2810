"""The kernel's figures of a process, by default of this one: memory and processor time. Linux only."""

from __future__ import annotations

import os
from pathlib import Path


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
