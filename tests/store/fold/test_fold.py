"""One conformance suite for both folds: on RocksDB and in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from eddyline.core.errors import TooManyScans
from eddyline.core.records.batch import Batch
from eddyline.core.records.fold_entry import encode_entry
from eddyline.core.records.record import MetaEntry, Op, Record
from eddyline.store.fold.entries import entries_of
from eddyline.store.fold.fold import VIEWS_MAX, FoldFailed, FoldWrite, WriterState, sync_for_checkpoint
from eddyline.store.fold.rocksdb import RocksFold
from tests.support.sim.fold import SimFold

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from eddyline.store.fold.fold import Fold, FoldView

TOPIC = 7
PAGE_BYTES = 1 << 20


class ReopenableFold:
    """A fold and how its kind is reopened."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.fold: Fold = SimFold(1) if path is None else RocksFold(path)

    def reopen(self) -> Fold:
        if self._path is None:
            assert isinstance(self.fold, SimFold)
            self.fold = self.fold.kill()
        else:
            self.fold.close()
            self.fold = RocksFold(self._path)
        return self.fold


@pytest.fixture(params=["rocksdb", "memory"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ReopenableFold]:
    bench = ReopenableFold(tmp_path / "fold" if request.param == "rocksdb" else None)
    yield bench
    bench.fold.close()


@pytest.fixture
def fold(bench: ReopenableFold) -> Fold:
    return bench.fold


def puts(first_seq: int, **pairs: str | None) -> FoldWrite:
    """A frame of TOPIC: a PUT for each value, or a DELETE for None."""
    records = [
        Record(op=Op.DELETE, key=key.encode())
        if text is None
        else Record(op=Op.PUT, key=key.encode(), data=text.encode())
        for key, text in pairs.items()
    ]
    batch = Batch.from_rows(records).with_seqs(first_seq, 1_000 + first_seq)
    return FoldWrite(TOPIC, batch.last_seq, entries_of(batch), [])


def drain(view: FoldView, entries_max: int = 100) -> list[bytes | None]:
    keys: list[bytes | None] = []
    while rows := view.next_page(entries_max, PAGE_BYTES):
        keys.extend(row.key for row in rows)
    view.close()
    return keys


def test_empty_fold_has_nothing(fold: Fold) -> None:
    assert fold.topics() == {}
    assert fold.applied(TOPIC) == 0
    assert fold.writers(TOPIC) == {}
    assert fold.get(TOPIC, [b"a"]) == [None]
    assert drain(fold.view(TOPIC)) == []
    fold.apply([])
    assert fold.topics() == {}


def test_entry_is_read_back_with_every_field(fold: Fold) -> None:
    record = Record(
        seq=9,
        ts_ms=10,
        source_ts_ns=-11,
        op=Op.PUT,
        key=b"k",
        data=b"d",
        tag="tägig",
        node="",
        meta=(MetaEntry("a", b"1"), MetaEntry("a", b"")),
        version=b"\x01\x02",
    )
    fold.apply([FoldWrite(TOPIC, 9, entries_of(Batch.from_rows([record])), [])])
    assert fold.get(TOPIC, [b"k"]) == [record]
    assert fold.view(TOPIC).next_page(1, 1) == [record]


def test_stored_entries_are_the_bytes_of_the_rows(fold: Fold) -> None:
    fold.apply([puts(1, a="1", b="2")])
    keys = [b"b", b"none", b"a", b"b"]
    rows = fold.get(TOPIC, keys)
    assert fold.get_stored(TOPIC, keys) == [None if row is None else encode_entry(row) for row in rows]


def test_entries_in_memory_are_read_if_all_keys_are_live_and_they_fit(fold: Fold) -> None:
    fold.apply([puts(1, a="1", b="2", gone="3"), puts(4, gone=None)])
    keys = [b"b", b"a", b"b"]
    assert fold.get_cached(TOPIC, keys, 1_000) == fold.get_stored(TOPIC, keys)
    assert fold.get_cached(TOPIC, [*keys, b"gone"], 1_000) is None
    assert fold.get_cached(TOPIC, [b"none"], 1_000) is None
    assert fold.get_cached(TOPIC + 1, [b"a"], 1_000) is None
    assert fold.get_cached(TOPIC, keys, 100) is None
    assert fold.get_cached(TOPIC, [b"a"], 1) == fold.get_stored(TOPIC, [b"a"])


def test_get_is_positional_and_keeps_repeats(fold: Fold) -> None:
    fold.apply([puts(1, a="1", b="2")])
    entries = fold.get(TOPIC, [b"b", b"none", b"a", b"b"])
    assert [row.data if row else None for row in entries] == [b"2", None, b"1", b"2"]
    assert fold.get(TOPIC, []) == []


def test_empty_and_absent_values_are_live_and_differ(fold: Fold) -> None:
    records = [Record(1, 1, 0, Op.PUT, b"absent"), Record(2, 1, 0, Op.PUT, b"empty", b"")]
    fold.apply([FoldWrite(TOPIC, 2, entries_of(Batch.from_rows(records)), [])])
    assert fold.get(TOPIC, [b"absent", b"empty"]) == records


def test_deleted_key_has_no_entry(fold: Fold) -> None:
    fold.apply([puts(1, a="1", b="2")])
    fold.apply([puts(3, a=None, never=None)])
    assert fold.get(TOPIC, [b"a", b"never"]) == [None, None]
    assert drain(fold.view(TOPIC)) == [b"b"]
    assert fold.applied(TOPIC) == 4


def test_writes_of_one_batch_apply_in_order(fold: Fold) -> None:
    fold.apply([puts(1, a="1"), puts(2, a=None), puts(3, a="3", b="3"), puts(5, b=None)])
    assert [row and row.data for row in fold.get(TOPIC, [b"a", b"b"])] == [b"3", None]
    assert fold.applied(TOPIC) == 5


def test_topics_of_one_batch_are_independent(fold: Fold) -> None:
    other = puts(1, a="other", z="other")._replace(topic_id=TOPIC + 1)
    fold.apply([puts(1, a="mine"), other])
    assert fold.topics() == {TOPIC: 1, TOPIC + 1: 2}
    assert [row and row.data for row in fold.get(TOPIC, [b"a", b"z"])] == [b"mine", None]
    assert drain(fold.view(TOPIC)) == [b"a"]
    assert drain(fold.view(TOPIC + 1)) == [b"a", b"z"]


def test_writers_move_with_their_frame(fold: Fold) -> None:
    fold.apply([puts(1, a="1")._replace(writers=[("w", WriterState(3, b"p1")), ("v", WriterState(1, b""))])])
    fold.apply([FoldWrite(TOPIC, 1, [], [("w", WriterState(1 << 63, b"p2"))])])
    fold.apply([FoldWrite(TOPIC + 1, 5, [], [])])
    assert fold.writers(TOPIC) == {"w": WriterState(1 << 63, b"p2"), "v": WriterState(1, b"")}
    assert fold.writers(TOPIC + 1) == {}
    assert fold.topics() == {TOPIC: 1, TOPIC + 1: 5}


def test_view_is_in_unsigned_byte_order(fold: Fold) -> None:
    keys = [b"b", b"\xff", b"a\x00", b"a", b"\x00", b"\xff\xff", b"a\xff"]
    records = [Record(i + 1, 1, 0, Op.PUT, key, b"") for i, key in enumerate(keys)]
    fold.apply([FoldWrite(TOPIC, 7, entries_of(Batch.from_rows(records)), [])])
    assert drain(fold.view(TOPIC), entries_max=2) == sorted(keys)


@pytest.mark.parametrize(
    ("key_prefix", "after_key", "expected"),
    [
        (b"", b"", [b"a", b"b.1", b"b.2", b"b\xff", b"b\xff\xff", b"c"]),
        (b"b", b"", [b"b.1", b"b.2", b"b\xff", b"b\xff\xff"]),
        (b"b", b"b.1", [b"b.2", b"b\xff", b"b\xff\xff"]),
        (b"b.", b"a", [b"b.1", b"b.2"]),
        (b"b.", b"b.2", []),
        (b"b\xff", b"", [b"b\xff", b"b\xff\xff"]),
        (b"\xff", b"", []),
        (b"", b"b.1", [b"b.2", b"b\xff", b"b\xff\xff", b"c"]),
        (b"", b"b", [b"b.1", b"b.2", b"b\xff", b"b\xff\xff", b"c"]),
        (b"b", b"c", []),
    ],
)
def test_view_is_bounded_by_prefix_and_key(
    fold: Fold, key_prefix: bytes, after_key: bytes, expected: list[bytes]
) -> None:
    records = [
        Record(i + 1, 1, 0, Op.PUT, key, b"")
        for i, key in enumerate((b"a", b"b.1", b"b.2", b"b\xff", b"b\xff\xff", b"c"))
    ]
    write = FoldWrite(TOPIC, 6, entries_of(Batch.from_rows(records)), [])
    fold.apply([write, write._replace(topic_id=TOPIC + 1), write._replace(topic_id=TOPIC - 1)])
    assert drain(fold.view(TOPIC, key_prefix=key_prefix, after_key=after_key)) == expected


def test_page_is_bounded_by_entries_and_by_bytes_and_never_empty_before_the_end(fold: Fold) -> None:
    fold.apply([puts(1, **{f"k{i}": "x" * 100 for i in range(10)})])
    view = fold.view(TOPIC)
    assert len(view.next_page(3, PAGE_BYTES)) == 3
    assert len(view.next_page(100, 1)) == 1
    assert len(view.next_page(100, 300)) == 2
    assert len(view.next_page(100, PAGE_BYTES)) == 4
    assert view.next_page(100, PAGE_BYTES) == []
    assert view.next_page(100, PAGE_BYTES) == []


def test_view_shows_the_moment_of_its_creation(fold: Fold) -> None:
    fold.apply([puts(1, a="1", b="1", c="1")])
    view = fold.view(TOPIC)
    assert [row.key for row in view.next_page(1, PAGE_BYTES)] == [b"a"]
    fold.apply([puts(4, b=None, c="2", d="2")])
    fold.flush()
    fold.delete_topic(TOPIC)
    rows = view.next_page(100, PAGE_BYTES)
    assert [(row.key, row.data) for row in rows] == [(b"b", b"1"), (b"c", b"1")]


def test_batches_equal_the_pages(fold: Fold) -> None:
    records = [
        Record(100 - i, i, i % 3, Op.PUT, b"k%03d" % i, b"x" * i, tag="t" if i > 60 else None) for i in range(70)
    ]
    fold.apply([FoldWrite(TOPIC, 100, entries_of(Batch.from_rows([row])), []) for row in records])
    pages, batches = fold.view(TOPIC), fold.view(TOPIC)
    rows: list[Record] = []
    while page := pages.next_page(25, 1_000):
        batch = batches.next_batch(25, 1_000)
        assert batch == Batch.from_rows(page)
        rows += page
    assert batches.next_batch(25, 1_000).count == 0
    assert rows == records


def test_page_is_bounded_if_large_entries_follow_small_ones(fold: Fold) -> None:
    sizes = [1] * 40 + [5_000] * 20 + [1] * 40
    records = [Record(i + 1, 1, 0, Op.PUT, b"%03d" % i, b"x" * size) for i, size in enumerate(sizes)]
    fold.apply([FoldWrite(TOPIC, 100, entries_of(Batch.from_rows(records)), [])])
    view, rows = fold.view(TOPIC), list[Record]()
    while page := view.next_page(30, 12_000):
        assert len(page) <= 30
        assert sum(3 + 40 + len(row.data or b"") for row in page) <= 12_000
        rows += page
    assert rows == records


def test_store_id_is_kept(bench: ReopenableFold) -> None:
    assert bench.fold.store_id() == ""
    bench.fold.set_store_id("störe-1")
    bench.fold.apply([puts(1, a="1")])
    bench.fold.delete_topic(TOPIC)
    assert bench.fold.store_id() == "störe-1"
    fold = bench.reopen()
    assert fold.store_id() == "störe-1"
    assert fold.topics() == {}


def test_checkpoint_is_kept_when_a_topic_is_deleted(bench: ReopenableFold) -> None:
    assert bench.fold.checkpoint() == 0
    bench.fold.apply([puts(1, a="1")])
    sync_for_checkpoint(bench.fold, 7)
    bench.fold.delete_topic(TOPIC)
    assert bench.fold.checkpoint() == 7
    fold = bench.reopen()
    assert fold.checkpoint() == 7
    assert fold.topics() == {}


def test_base_survives_applies_and_is_deleted_with_the_topic(bench: ReopenableFold) -> None:
    bench.fold.apply([puts(1, a="1")])
    assert bench.fold.base_seq(TOPIC) == 0
    bench.fold.set_base(TOPIC, 1)
    bench.fold.apply([puts(2, b="2")])
    for again in (False, True):
        fold = bench.reopen() if again else bench.fold
        assert fold.base_seq(TOPIC) == 1
        assert fold.topics() == {TOPIC: 2}
        assert fold.base_seq(TOPIC + 1) == 0
    bench.fold.delete_topic(TOPIC)
    bench.fold.apply([puts(1, a="1")])
    assert bench.fold.base_seq(TOPIC) == 0
    assert bench.reopen().base_seq(TOPIC) == 0


def test_base_of_an_unknown_topic_creates_it(bench: ReopenableFold) -> None:
    bench.fold.set_base(TOPIC, 5)
    for again in (False, True):
        fold = bench.reopen() if again else bench.fold
        assert fold.topics() == {TOPIC: 0}
        assert fold.base_seq(TOPIC) == 5


def test_erase_changes_no_live_entry(bench: ReopenableFold) -> None:
    frames = puts(1, a="1", b="2"), puts(3, a=None)
    bench.fold.apply([frame._replace(topic_id=topic_id) for frame in frames for topic_id in (TOPIC, TOPIC + 1)])
    bench.fold.set_store_id("store")
    bench.fold.set_base(TOPIC, 1)
    bench.fold.delete_topic(TOPIC + 1)
    for topic_id in (TOPIC, TOPIC + 1, 99):
        assert bench.fold.erase(topic_id)
    for again in (False, True):
        fold = bench.reopen() if again else bench.fold
        assert fold.topics() == {TOPIC: 3}
        assert fold.base_seq(TOPIC) == 1
        assert fold.store_id() == "store"
        assert drain(fold.view(TOPIC)) == [b"b"]
        assert fold.get(TOPIC, [b"a"]) == [None]


def test_erase_waits_for_views_that_were_open(fold: Fold) -> None:
    fold.apply([puts(1, a="1", b="1")])
    fold.flush()
    view = fold.view(TOPIC)
    fold.apply([puts(3, a=None)])
    assert not fold.erase(TOPIC)
    assert [row.key for row in view.next_page(10, PAGE_BYTES)] == [b"a", b"b"]
    view.close()
    assert fold.erase(TOPIC)


def test_views_of_the_store_itself_are_neither_counted_nor_refused(fold: Fold) -> None:
    own = [fold.view(TOPIC, counted=False) for _ in range(3)]
    views = [fold.view(TOPIC) for _ in range(VIEWS_MAX)]
    own.append(fold.view(TOPIC, counted=False))
    fold.close()
    for view in (*own, *views):
        with pytest.raises(FoldFailed):
            view.next_page(1, 1)


def test_views_are_bounded_and_a_close_makes_room(fold: Fold) -> None:
    fold.apply([puts(1, a="1")])
    views = [fold.view(TOPIC) for _ in range(VIEWS_MAX)]
    with pytest.raises(TooManyScans):
        fold.view(TOPIC)
    views[0].close()
    views[0].close()
    assert drain(fold.view(TOPIC)) == [b"a"]


def test_closed_view_returns_no_page(fold: Fold) -> None:
    view = fold.view(TOPIC)
    view.close()
    with pytest.raises(FoldFailed):
        view.next_page(1, 1)


def test_deleted_topic_is_removed_completely_and_alone(bench: ReopenableFold) -> None:
    fold = bench.fold
    write = puts(1, a="1")._replace(writers=[("w", WriterState(1, b"p"))])
    fold.apply([write._replace(topic_id=topic_id) for topic_id in (TOPIC - 1, TOPIC, TOPIC + 1)])
    fold.delete_topic(TOPIC)
    fold.delete_topic(TOPIC)
    fold.delete_topic(99)
    for again in (False, True):
        opened = bench.reopen() if again else fold
        assert opened.topics() == {TOPIC - 1: 1, TOPIC + 1: 1}
        assert opened.get(TOPIC, [b"a"]) == [None]
        assert opened.writers(TOPIC) == {}
        assert opened.writers(TOPIC + 1) == {"w": WriterState(1, b"p")}
        assert drain(opened.view(TOPIC)) == []
        assert drain(opened.view(TOPIC - 1)) == [b"a"]


def test_everything_is_kept_by_a_reopen(bench: ReopenableFold) -> None:
    bench.fold.apply([puts(1, a="1", b="1")._replace(writers=[("w", WriterState(2, b"p"))])])
    bench.fold.flush()
    bench.fold.apply([puts(3, a=None, c="3")])
    fold = bench.reopen()
    assert fold.topics() == {TOPIC: 4}
    assert fold.applied(TOPIC) == 4
    assert fold.writers(TOPIC) == {"w": WriterState(2, b"p")}
    assert drain(fold.view(TOPIC)) == [b"b", b"c"]


def test_close_closes_views_and_refuses_later_calls(fold: Fold) -> None:
    fold.apply([puts(1, a="1")])
    view = fold.view(TOPIC)
    fold.close()
    fold.close()
    with pytest.raises(FoldFailed):
        view.next_page(1, 1)
    for use in (
        lambda: fold.get(TOPIC, [b"a"]),
        lambda: fold.view(TOPIC),
        lambda: fold.apply([puts(2, a="2")]),
        lambda: fold.erase(TOPIC),
        lambda: fold.set_base(TOPIC, 1),
        lambda: fold.set_store_id("s"),
        lambda: fold.set_checkpoint(1),
    ):
        with pytest.raises(FoldFailed):
            use()
    with pytest.raises(FoldFailed):
        fold.flush()


def test_adopted_tables_replace_the_topics_entries(bench: ReopenableFold, tmp_path: Path) -> None:
    fold = bench.fold
    fold.apply([puts(1, a="old", b="old")])
    fold.apply([FoldWrite(TOPIC + 1, 4, [(b"a", entries_of_one(4, b"other"))], [])])
    (tmp_path / "tables").mkdir()
    tables = fold.new_tables(TOPIC, tmp_path / "tables")
    tables.add([(b"b", entries_of_one(5, b"new")), (b"c", entries_of_one(9, b"new"))])
    tables.add([(b"d\xff", entries_of_one(8, b""))])
    tables.finish()
    before = fold.view(TOPIC)
    fold.adopt(TOPIC, tables, 9, [("w", WriterState(3, b"p"))])
    assert drain(before) == [b"a", b"b"], "a view is of its own moment"
    for again in (False, True):
        opened = bench.reopen() if again else fold
        assert drain(opened.view(TOPIC)) == [b"b", b"c", b"d\xff"]
        assert (opened.applied(TOPIC), opened.base_seq(TOPIC)) == (9, 9)
        assert opened.writers(TOPIC) == {"w": WriterState(3, b"p")}
        assert drain(opened.view(TOPIC + 1)) == [b"a"]
    bench.fold.apply([puts(10, b=None, e="1")])
    assert drain(bench.fold.view(TOPIC)) == [b"c", b"d\xff", b"e"]
    bench.fold.delete_topic(TOPIC)
    assert drain(bench.fold.view(TOPIC)) == []


def test_adopting_no_tables_makes_an_empty_topic(bench: ReopenableFold, tmp_path: Path) -> None:
    tables = bench.fold.new_tables(TOPIC, tmp_path)
    tables.finish()
    bench.fold.adopt(TOPIC, tables, 5, [])
    assert (bench.fold.applied(TOPIC), drain(bench.reopen().view(TOPIC))) == (5, [])


def entries_of_one(seq: int, data: bytes) -> bytes:
    return encode_entry(Record(seq=seq, op=Op.PUT, key=b"k", data=data))
