"""Quarantine: unknown or damaged files are moved to `orphans/<today>/`, with their path in the data directory."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from eddyline.core.runtime.fs import Fs
    from eddyline.store.storage.layout import Layout


def set_aside(fs: Fs, layout: Layout, path: Path, *, now_ms: int) -> Path:
    """Move a file or directory to today's orphans, where it keeps its path relative to the data directory; return the new
    path.

    Raises:
        OSError.
    """
    return _set_aside(fs, layout, path, _day(now_ms))


def _day(now_ms: int) -> str:
    return datetime.fromtimestamp(now_ms / 1000, UTC).date().isoformat()


def _set_aside(fs: Fs, layout: Layout, path: Path, day: str) -> Path:
    target = layout.orphans / day / path.relative_to(layout.data_dir)
    below = len(target.parents) - len(layout.data_dir.parents) - 1
    for directory in reversed(target.parents[:below]):
        if not fs.exists(directory):
            fs.mkdir(directory)
            fs.fsync_dir(directory.parent)
    name, number = target.name, 1
    while fs.exists(target):
        number += 1
        target = target.with_name(f"{name}.{number}")
    fs.rename(path, target)
    fs.fsync_dir(target.parent)
    fs.fsync_dir(path.parent)
    return target
