"""Result of a recovery, from which the store is assembled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eddyline.store.catalog.catalog import CatalogHead
from eddyline.store.log.sources import SourceTable
from eddyline.store.log.table import TopicTable
from eddyline.store.recovery.replay import Replay
from eddyline.store.storage.wal.wal import Wal

if TYPE_CHECKING:
    from eddyline.store.fold.fold import Fold
    from eddyline.store.fold_repair.repair import Salvage


@dataclass(frozen=True, slots=True)
class Recovered:
    """Catalog head, topics, sources, WAL shards and fold of a recovered store."""

    head: CatalogHead
    store_id: str
    table: TopicTable
    sources: SourceTable
    replay: Replay
    wals: list[Wal]
    fold: Fold
    salvaged: dict[int, Salvage]
