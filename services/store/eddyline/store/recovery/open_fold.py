"""Opening the fold that belongs to a catalog, or a new one in its place: a wrong fold is never used.

    of another store            the start is refused: one of the two directories is not this store's own
    damaged, or found so        set aside under orphans/, and made anew
    has lost what was synced    its checkpoint is below the catalog's: as damaged
    empty, or not there         made anew

A new fold is told at once whose it is and which checkpoint it belongs to: from then on the applied seq of each topic says
how far it is (`fold_repair.py` does the rest), so that a start which is cut off goes on where it was.
Failure: what is no damage (a lock, rights, an error of the disk) is FoldFailed and refuses the start: it says nothing about
the files.
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
    """Opens one store's fold, and closes what it opened."""

    def __init__(self, machine: Env, layout: Layout) -> None:
        self._machine = machine
        self._layout = layout
        self._fold: Fold | None = None

    def open(self, head: CatalogHead, table: TopicTable) -> Fold:
        """The fold of the store whose catalog this is.

        Raises:
            DataCorrupt: it belongs to another store. NewerFormat. FoldFailed: it is locked, or cannot be read. OSError.
        """
        fold = self._opened()
        check_owner(fold, head)
        if fold.checkpoint() < head.checkpoint:
            topics, kv_topics = len(fold.topics()), sum(topic.folds for topic in table.all())
            if topics or kv_topics:
                found = fields(topics=topics, kv_topics=kv_topics, checkpoint=fold.checkpoint(), wanted=head.checkpoint)
                logger.warning("fold_is_not_the_catalogs", extra=found)
            if topics:
                fold.close()
                self._set_aside()
                fold = self._opened()
            retry_stalled(fold, partial(fold.set_store_id, head.store_id))
            retry_stalled(fold, partial(fold.set_checkpoint, head.checkpoint))
        return fold

    def close(self) -> None:
        """Close what is open."""
        if self._fold is not None:
            self._fold.close()

    def _opened(self) -> Fold:
        damage = ""
        try:
            self._fold = self._machine.open_fold()
        except NewerFormat:
            raise
        except DataCorrupt as error:
            damage = error.message
        if damage:
            logger.error("fold_damaged", extra=fields(error=damage))
            self._set_aside()
            self._fold = self._machine.open_fold()
        assert self._fold is not None
        return self._fold

    def _set_aside(self) -> None:
        fs, layout = self._machine.fs, self._layout
        if fs.exists(layout.fold):
            target = set_aside(fs, layout, layout.fold, now_ms=self._machine.clock.now_ms())
            logger.warning("set_aside", extra=fields(path=str(layout.fold), to=str(target)))


def check_owner(fold: Fold, head: CatalogHead) -> None:
    """A fold belongs to the store that made it.

    Raises:
        DataCorrupt: this one belongs to another.
    """
    found = fold.store_id()
    if found and head.store_id and found != head.store_id:
        raise DataCorrupt(
            f"the fold belongs to store {found}, the catalog to store {head.store_id}: one of the two directories is "
            "not this store's own",
            file="fold",
            offset=0,
        )
