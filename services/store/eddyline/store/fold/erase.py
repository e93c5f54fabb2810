"""Record deletes in the fold: remove matching keys whose last write is within the delete's bound.

A repeated call finds no entry, so an interrupted caller starts over. The fold's files hold the entries until `Fold.erase`.
Threading: the fold's thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from eddyline.core.records.match import MatchField, MatchKind
from eddyline.store.fold.fold import FoldWrite

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eddyline.core.records.match import Match
    from eddyline.store.fold.fold import ReplayedFold

PAGE_ENTRIES: Final = 4096
PAGE_BYTES: Final = 1 << 20
"""Entries read, and at most deleted, in one write: as large as the applier's."""


def erase_entries(fold: ReplayedFold, topic_id: int, match: Match, bound_seq: int) -> int:
    """Delete the topic's entries whose key matches and whose seq is at most `bound_seq`; its applied seq is unchanged.

    Returns:
        The number of deleted entries.

    Raises:
        FoldStalled: some may be deleted; call again. FoldFailed, DataCorrupt.
    """
    assert match.field is MatchField.KEY, "a fold's entries are not deleted by tag"
    if match.kind is MatchKind.EQ:
        (entry,) = fold.get(topic_id, [match.value])
        is_due = entry is not None and entry.seq <= bound_seq
        _delete(fold, topic_id, [match.value] if is_due else [])
        return int(is_due)
    erased = 0
    view = fold.view(topic_id, key_prefix=match.value, counted=False)
    try:
        while (page := view.next_batch(PAGE_ENTRIES, PAGE_BYTES)).count:
            keys = page.keys()
            due = [keys[index] for index in np.flatnonzero(page.seq_array() <= bound_seq).tolist()]
            _delete(fold, topic_id, due)
            erased += len(due)
    finally:
        view.close()
    return erased


def _delete(fold: ReplayedFold, topic_id: int, keys: Sequence[bytes | None]) -> None:
    entries: list[tuple[bytes, bytes | None]] = [(key, None) for key in keys if key is not None]
    if entries:
        fold.apply([FoldWrite(topic_id, fold.applied(topic_id), entries, [])])
