"""An artifact that was checked, and is ready to land."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

    from eddyline.store.artifacts.manifest import Manifest
    from eddyline.store.catalog.catalog import BaseEntry
    from eddyline.store.fold.fold import Tables


class Staged(NamedTuple):
    """All of an artifact. `base_path` is where the base's file will be, now a temporary; None = no entries."""

    name: str
    is_latest: bool
    manifest: Manifest
    tables: Tables
    base: BaseEntry
    base_path: Path | None
    next_generation: int
