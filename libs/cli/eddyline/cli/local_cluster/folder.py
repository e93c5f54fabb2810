"""The folder of a local cluster: its lock, its logs, its cluster file.

*Invariant:* one supervisor a folder: `LOCK` is held by flock for as long as the process lives, and names it (pid, host).
"""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from eddyline.cli.errors import CommandError
from eddyline.cli.local_cluster.find import CLUSTER_FILE, ClusterFile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from eddyline.core.runtime.clock import Host

LOCK_FILE: Final = "LOCK"
LOGS: Final = "logs"
LOGS_KEPT: Final = 3
"""Older logs of a part beside the current one: enough to see why it died the last times, bounded by the starts."""


@contextmanager
def locked_folder(data: Path, host: Host) -> Iterator[None]:
    """Make the folder and hold its lock.

    Raises:
        CommandError: somebody else holds it (named), or the folder cannot be written.
    """
    try:
        (data / LOGS).mkdir(parents=True, exist_ok=True)
        descriptor = os.open(data / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise CommandError(f"cannot use {data}: {error.strerror}", "give another folder with --data") from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(descriptor, 256, 0).decode("utf-8", "replace").strip() or "another process"
            raise CommandError(
                f"{data} is in use by {holder}", "stop that one, or give another folder with --data"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"pid {host.pid()} on {host.name()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def open_log(data: Path, name: str) -> int:
    """Rotate the part's log and open a new one; the caller closes the descriptor. Path: `log_path`."""
    path = log_path(data, name)
    for age in range(LOGS_KEPT, 0, -1):
        older = path.with_name(f"{path.name}.{age}")
        newer = path.with_name(f"{path.name}.{age - 1}") if age > 1 else path
        if newer.exists():
            newer.replace(older)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)


def log_path(data: Path, name: str) -> Path:
    """The log file of a part."""
    return data / LOGS / f"{name}.log"


def last_log_line(data: Path, name: str) -> str:
    """The last line a part said, for telling why it died; empty where it said nothing."""
    try:
        tail = log_path(data, name).read_bytes()[-4096:]
    except OSError:
        return ""
    lines = [line for line in tail.decode("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""


def write_cluster_file(data: Path, content: ClusterFile) -> None:
    """Replace the cluster file: readers see the old one or the new one."""
    path = data / CLUSTER_FILE
    fresh = path.with_name(CLUSTER_FILE + ".new")
    fresh.write_text(content.to_json(), encoding="utf-8")
    fresh.replace(path)
