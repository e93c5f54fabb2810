"""P8: the fold against rocksdict alone, in one process: apply, get of many keys, range.

Ours is what the store does with a frame or a call, without its event loop: `entries_of` a batch and `RocksFold.apply`, in
writes of the applier's size; `PointRead` of 1 000 keys; a view in the pages of a scan. The baseline puts, gets and iterates
the very same keys and values by the shortest way that the binding has: with its default options, a page of a range as a
list, and nothing made of the bytes. Beside it, for the eye: iterating alone, which keeps nothing.
"""

from __future__ import annotations

import random
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from rocksdict import Options, Rdict, WriteBatch

from eddyline.core.records.batch import Batch
from eddyline.core.records.record import Op, Record
from eddyline.store.fold.entries import entries_of
from eddyline.store.fold.fold import FoldStalled, FoldWrite
from eddyline.store.fold.meta_codec import TOPIC
from eddyline.store.fold.rocksdb import RocksFold
from eddyline.store.read.fold_reader import PAGE_BYTES, PAGE_ENTRIES
from eddyline.store.read.point_read import PointRead
from eddyline.store.write.fold_apply import WRITE_ENTRIES_MAX
from tests.bench.harness import Figure, alternate

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

TOPIC_ID = 1
PREFIX = TOPIC.pack(TOPIC_ID)
KEYS = 200_000
DATA_BYTES = 100
BATCHES = KEYS // WRITE_ENTRIES_MAX
GET_KEYS = 1_000
GETS = 100
TARGET = 0.5


def made_batches(rng: random.Random) -> list[Batch]:
    """Every key once, in random order, in frames of a write's size."""
    keys = [b"user/%012d/state" % number for number in range(BATCHES * WRITE_ENTRIES_MAX)]
    rng.shuffle(keys)
    records = [Record(op=Op.PUT, key=key, data=rng.randbytes(DATA_BYTES)) for key in keys]
    cuts = range(0, len(records), WRITE_ENTRIES_MAX)
    return [Batch.from_rows(records[cut : cut + WRITE_ENTRIES_MAX]).with_seqs(cut + 1, 1) for cut in cuts]


class Ours:
    """The fold, filled by its first round of apply."""

    def __init__(self, path: Path, batches: list[Batch]) -> None:
        self._fold = RocksFold(path)
        self._batches = batches

    def apply(self) -> int:
        for batch in self._batches:
            write = FoldWrite(TOPIC_ID, batch.last_seq, entries_of(batch), [])
            while True:
                try:
                    self._fold.apply([write])
                    break
                except FoldStalled:
                    self._fold.flush()
        return BATCHES * WRITE_ENTRIES_MAX

    def get(self, asked: list[list[bytes]]) -> int:
        found = 0
        for keys in asked:
            found += sum(value is not None for value in PointRead(self._fold, TOPIC_ID, keys).run().values)
        return found

    def range(self) -> int:
        view, seen = self._fold.view(TOPIC_ID), 0
        while count := view.next_batch(PAGE_ENTRIES, PAGE_BYTES).count:
            seen += count
        view.close()
        return seen

    def settle(self) -> None:
        assert self._fold.erase(TOPIC_ID)

    def close(self) -> None:
        self._fold.close()


class Bare:
    """The binding alone, with the same keys and values."""

    def __init__(self, path: Path, batches: list[Batch]) -> None:
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        self._database = Rdict(str(path), options)
        self._batches = [[(PREFIX + key, value or b"") for key, value in entries_of(batch)] for batch in batches]

    def apply(self) -> int:
        for entries in self._batches:
            batch = WriteBatch(raw_mode=True)
            for key, value in entries:
                batch.put(key, value)
            self._database.write(batch)
        return BATCHES * WRITE_ENTRIES_MAX

    def get(self, asked: list[list[bytes]]) -> int:
        found = 0
        for keys in asked:
            values = self._database.get(keys)  # type: ignore[arg-type]  # of bytes, which it takes
            assert values is not None
            found += len(values) - values.count(None)
        return found

    def range(self) -> int:
        items, seen = self._database.items(), 0
        while page := list(islice(items, PAGE_ENTRIES)):
            seen += len(page)
        return seen

    def iterate(self) -> int:
        return sum(1 for _ in self._database.items())

    def settle(self) -> None:
        self._database.flush(True)
        self._database.compact_range(None, None)

    def close(self) -> None:
        self._database.close()


def timed(work: Callable[[], int]) -> Callable[[], Awaitable[float]]:
    """A round: entries a second."""

    async def run() -> float:
        started = time.perf_counter()
        done = work()
        return done / (time.perf_counter() - started)

    return run


async def measure() -> list[Figure]:
    """The row's figures."""
    rng = random.Random(8)
    with tempfile.TemporaryDirectory() as directory:
        batches = made_batches(rng)
        ours, bare = Ours(Path(directory) / "ours", batches), Bare(Path(directory) / "bare", batches)
        applied = await alternate(timed(ours.apply), timed(bare.apply))
        # Reads are compared on tables that no compaction is at work on, all on one level.
        ours.settle()
        bare.settle()
        keys = [row.key for batch in batches for row in batch.to_rows() if row.key is not None]
        asked = [rng.sample(keys, GET_KEYS) for _ in range(GETS)]
        asked_bare = [[PREFIX + key for key in keys] for keys in asked]
        assert ours.get(asked) == bare.get(asked_bare) == GETS * GET_KEYS
        assert ours.range() == bare.range() == len(keys)
        got = await alternate(timed(lambda: ours.get(asked)), timed(lambda: bare.get(asked_bare)))
        ranged = await alternate(timed(ours.range), timed(bare.range))
        iterated = await timed(bare.iterate)()
        ours.close()
        bare.close()
    figures = [
        figure
        for name, (value, baseline) in (("apply", applied), ("get", got), ("range", ranged))
        for figure in (
            Figure("P8", name, value, "entries/s", value / baseline, TARGET),
            Figure("P8", f"{name}_bare", baseline, "entries/s"),
        )
    ]
    return [*figures, Figure("P8", "iterate_bare", iterated, "entries/s")]
