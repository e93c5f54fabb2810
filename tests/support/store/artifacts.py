"""Exports and imports through a store's door, and what its folds hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eddyline.core.model.artifact import FoldExported, FoldImported

if TYPE_CHECKING:
    from eddyline.core.records.record import Record
    from eddyline.store.shard.shard import Shard


async def exported(link: Shard, topic: str = "kv") -> FoldExported:
    """Export a topic's fold."""
    steps = [step async for step in link.export_fold(topic)]
    assert isinstance(steps[-1], FoldExported)
    return steps[-1]


async def imported(link: Shard, topic: str = "kv", *, from_topic: str = "", artifact: str = "") -> FoldImported:
    """Import an artifact into a topic."""
    steps = [step async for step in link.import_fold(topic, from_topic=from_topic, artifact=artifact)]
    assert isinstance(steps[-1], FoldImported)
    return steps[-1]


async def fold_of(link: Shard, topic: str = "kv") -> list[Record]:
    """All entries of a topic's fold in order of keys."""
    found: list[Record] = []
    async for page in link.range_entries(topic):
        if page.batch is not None:
            found += page.batch.to_rows()
    return found
