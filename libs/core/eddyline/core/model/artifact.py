"""Artifacts of folds: dumps that live apart from any store, and what an export or an import of one answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from eddyline.core.model.read import FoldState

ARTIFACTS_LISTED_MAX: Final = 1_000
"""The contract's: a store that keeps a few a topic never has so many."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """A fold at `fold_seq`. `source` "" = the topic had none; `is_latest` = what an import takes that names none."""

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
    """How far an export or an import is in one of its stages; entries or bytes. `total_count` 0 = not known."""

    stage: str
    done_count: int
    total_count: int = 0


@dataclass(frozen=True, slots=True)
class FoldExported:
    """What was written. `superseded` = a newer artifact was there, and stays the latest."""

    artifact: Artifact
    superseded: bool
    latest: str


@dataclass(frozen=True, slots=True)
class FoldImported:
    """What a topic's fold is from now on. `position_set` = its source goes on from the artifact's position."""

    artifact: Artifact
    position_set: bool
    state: FoldState
