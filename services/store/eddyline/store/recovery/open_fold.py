"""Opens the fold that belongs to a catalog, or creates a new one: a wrong fold is never used.

    of another store            the start is refused: one of the two directories is not this store's own
    damaged, now or before      moved under orphans/, and created again
    has lost synced writes      its checkpoint is below the catalog's: as damaged
    empty, or missing           created

A new fold gets its store id and checkpoint at once: from then on the applied seq of each topic is its progress
(`fold_repair/repair.py` does the rest), so that the start after a kill continues from there.
Failure: other errors than damage (a lock, permissions, an error of the disk) are FoldFailed and refuse the start: they prove
nothing about the files.
Threading: the fold's thread, before anything is served.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from eddyline.core.errors import DataCorrupt, NewerFormat
from eddyline.core.runtime.logging import fields
from eddyline.store.fold.fold import retry_stalled
from eddyline.store.storage.quarantine import set_aside

if TYPE_CHECKING:
    from eddyline.store.catalog.catalog import CatalogHead
    from eddyline.store.env import Env
    from eddyline.store.fold.fold import Fold
    from eddyline.store.log.table import TopicTable
    from eddyline.store.storage.layout import Layout

logger = logging.getLogger(__name__)


class FoldOpener:
    """Opens one store's fold, and closes it."""

    def __init__(self, env: Env, layout: Layout) -> None:
        self._env = env
        self._layout = layout
        self._fold: Fold | None = None

    def open(self, head: CatalogHead, table: TopicTable) -> Fold:
        """Open the fold of the store that `head` belongs to.

        Raises:
            DataCorrupt: the fold belongs to another store. NewerFormat. FoldFailed: it is locked, or unreadable. OSError.
        """
        fold = self._open_or_create()
        check_owner(fold, head)
        if fold.checkpoint() < head.checkpoint:
            topics, kv_topics = len(fold.topics()), sum(topic.folds for topic in table.all())
            if topics or kv_topics:
                extra = fields(topics=topics, kv_topics=kv_topics, checkpoint=fold.checkpoint(), wanted=head.checkpoint)
                logger.warning("fold_is_not_the_catalogs", extra=extra)
            if topics:
                fold.close()
                self._set_aside()
                fold = self._open_or_create()
            retry_stalled(fold, partial(fold.set_store_id, head.store_id))
            retry_stalled(fold, partial(fold.set_checkpoint, head.checkpoint))
        return fold

    def close(self) -> None:
        """Close the fold, if it is open."""
        if self._fold is not None:
            self._fold.close()

    def _open_or_create(self) -> Fold:
        damage = ""
        try:
            self._fold = self._env.open_fold()
        except NewerFormat:
            raise
        except DataCorrupt as error:
            damage = error.message
        if damage:
            logger.error("fold_damaged", extra=fields(error=damage))
            self._set_aside()
            self._fold = self._env.open_fold()
        assert self._fold is not None
        return self._fold

    def _set_aside(self) -> None:
        fs, layout = self._env.fs, self._layout
        if fs.exists(layout.fold):
            target = set_aside(fs, layout, layout.fold, now_ms=self._env.clock.now_ms())
            logger.warning("set_aside", extra=fields(path=str(layout.fold), to=str(target)))


def check_owner(fold: Fold, head: CatalogHead) -> None:
    """Check that the fold belongs to the catalog's store.

    Raises:
        DataCorrupt: it belongs to another one.
    """
    store_id = fold.store_id()
    if store_id and head.store_id and store_id != head.store_id:
        raise DataCorrupt(
            f"the fold belongs to store {store_id}, the catalog to store {head.store_id}: one of the two directories "
            "belongs to another store",
            file="fold",
            offset=0,
        )
