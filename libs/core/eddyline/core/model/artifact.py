"""Artifacts of folds: dumps stored outside any store, and the results of exports and imports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from eddyline.core.model.read import FoldState

ARTIFACTS_LISTED_MAX: Final = 1_000
"""The contract's bound: a store that keeps a few a topic never has so many."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """A dump of a fold at `fold_seq`. `source` "" = the topic had none; `is_latest` = the default of an import."""

    name: str
    topic: str
    epoch: int
    fold_seq: int
    entry_count: int
    file_bytes: int
    created_ms: int
    store_id: str
    source: str = ""
    source_position: bytes = b""
    is_latest: bool = False


@dataclass(frozen=True, slots=True)
class ArtifactProgress:
    """Progress of an export or import within one stage, in entries or bytes. `total_count` 0 = unknown."""

    stage: str
    done_count: int
    total_count: int = 0


@dataclass(frozen=True, slots=True)
class FoldExported:
    """Result of an export. `superseded` = a newer artifact existed, and stays the latest."""

    artifact: Artifact
    superseded: bool
    latest: str


@dataclass(frozen=True, slots=True)
class FoldImported:
    """Result of an import: the topic's new fold. `position_set` = its source continues from the artifact's position."""

    artifact: Artifact
    position_set: bool
    state: FoldState
