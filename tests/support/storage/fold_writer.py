"""A process that does nothing but apply to a fold, made to be killed: `python -m tests.support.storage.fold_writer PATH`.

Each step is one batch over two topics: a frame of `FRAME` records over `KEYS` keys, whose values are their seqs, some of
them deletes, and the move of a writer. After a step its last seq goes to standard output, a line each: that step is
acknowledged.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from eddyline.core.records.batch import Batch
from eddyline.core.records.record import Op, Record
from eddyline.store.fold.entries import entries_of
from eddyline.store.fold.fold import FoldWrite, WriterState
from eddyline.store.fold.rocksdb import RocksFold

if TYPE_CHECKING:
    from eddyline.store.fold.fold import Fold

TOPICS = (1, 2)
FRAME = 20
KEYS = 97


def record(seq: int) -> Record:
    """The record of a seq: a DELETE at each seventh, a PUT of the seq else."""
    key = b"key %d" % (seq * 31 % KEYS)
    return Record(op=Op.DELETE, key=key) if seq % 7 == 0 else Record(op=Op.PUT, key=key, data=b"%d" % seq)


def step(first_seq: int) -> list[FoldWrite]:
    """One batch: the same frame and move for each topic."""
    rows = [record(seq) for seq in range(first_seq, first_seq + FRAME)]
    batch = Batch.from_rows(rows).with_seqs(first_seq, first_seq)
    writers = [("writer", WriterState(1, b"%d" % batch.last_seq))]
    return [FoldWrite(topic_id, batch.last_seq, entries_of(batch), writers) for topic_id in TOPICS]


def live_at(seq: int) -> dict[bytes, bytes]:
    """The live entries after `seq`: value by key."""
    live: dict[bytes, bytes] = {}
    for written in (record(number) for number in range(1, seq + 1)):
        assert written.key is not None
        live.pop(written.key, None)
        if written.data is not None:
            live[written.key] = written.data
    return live


def run(fold: Fold) -> None:
    """Go on from where the fold is, without end."""
    last_seq = fold.applied(TOPICS[0])
    while True:
        fold.apply(step(last_seq + 1))
        last_seq += FRAME
        os.write(1, b"%d\n" % last_seq)


if __name__ == "__main__":
    run(RocksFold(Path(sys.argv[1])))
