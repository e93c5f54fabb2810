"""One conformance suite for both catalogs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from rocksdict import Options, Rdict

from eddyline.core.errors import CatalogLost, DataCorrupt
from eddyline.store.catalog.catalog import CatalogFailed
from eddyline.store.catalog.codec import topic_key
from eddyline.store.catalog.rocksdb import RocksCatalog
from tests.support.sim.catalog import SimCatalog
from tests.support.sim.fs import SimFs
from tests.support.storage import catalog_entries as entries

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eddyline.store.catalog.catalog import Catalog, CatalogHead, TopicEntry


class CatalogHome:
    """The directory of one catalog; at most one catalog is open at a time."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.path = directory / "catalog"
        self.fs = SimFs()
        self._rocksdb = kind == "rocksdb"
        self._open: list[Catalog] = []

    def open(self, *, must_exist: bool = False) -> Catalog:
        """Open the catalog as the next process does after a kill."""
        self.close()
        self.fs = self.fs.reboot("kill")
        catalog: Catalog = (
            RocksCatalog(self.path, must_exist=must_exist)
            if self._rocksdb
            else SimCatalog(self.fs, self.path, must_exist=must_exist)
        )
        self._open.append(catalog)
        return catalog

    def opened(self, *, must_exist: bool = False) -> Catalog:
        """Open the catalog and load it."""
        catalog = self.open(must_exist=must_exist)
        load(catalog)
        return catalog

    def close(self) -> None:
        while self._open:
            self._open.pop().close()

    def damage(self, key: bytes) -> None:
        """Flip one bit of a key's value."""
        if self._rocksdb:
            database = Rdict(str(self.path), Options(raw_mode=True))
            value = database[key]
            assert isinstance(value, bytes)
            database[key] = _damaged(value)
            database.close()
        else:
            content = self.fs.engines[self.path]
            content[key] = _damaged(content[key])


def _damaged(value: bytes) -> bytes:
    return value[:-1] + bytes((value[-1] ^ 1,))


@pytest.fixture(params=["rocksdb", "memory"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CatalogHome]:
    home = CatalogHome(request.param, tmp_path)
    yield home
    home.close()


def load(catalog: Catalog) -> tuple[CatalogHead | None, list[TopicEntry]]:
    head, topics = catalog.load()
    return head, list(topics)


def test_new_catalog_has_neither_head_nor_topics(home: CatalogHome) -> None:
    assert load(home.open()) == (None, [])


def test_written_state_is_loaded_after_a_reopen(home: CatalogHome) -> None:
    topics = [entries.plain_topic(1), entries.rich_topic(2), entries.plain_topic((1 << 64) - 1)]
    home.opened().write(entries.head(1), topics[::-1], [])
    assert load(home.open(must_exist=True)) == (entries.head(1), topics)


def test_later_write_replaces_only_the_topics_it_names(home: CatalogHome) -> None:
    catalog = home.opened()
    catalog.write(entries.head(1), [entries.plain_topic(1), entries.plain_topic(2), entries.rich_topic(3)], [])
    catalog.write(entries.head(2), [entries.plain_topic(2, head_seq=5)], [])
    assert load(home.open()) == (
        entries.head(2),
        [entries.plain_topic(1), entries.plain_topic(2, head_seq=5), entries.rich_topic(3)],
    )


def test_removed_topic_loses_all_its_pieces_and_an_unknown_one_is_no_error(home: CatalogHome) -> None:
    catalog = home.opened()
    large = replace(entries.plain_topic(2), gaps=bytes(200_000), keys=tuple(map(entries.key, range(3000))))
    catalog.write(entries.head(1), [entries.plain_topic(1), large, entries.plain_topic(3)], [])
    catalog = home.opened()
    catalog.write(entries.head(2), [entries.plain_topic(1)], [2, 7])
    assert load(home.open()) == (entries.head(2), [entries.plain_topic(1), entries.plain_topic(3)])


def test_large_parts_grow_change_and_shrink_over_restarts(home: CatalogHome) -> None:
    sizes = (0, 100, 3000, 2000, 2500, 10, 0, 1500)
    for checkpoint, size in enumerate(sizes):
        entry = replace(
            entries.plain_topic(1),
            keys=tuple(map(entries.key, range(checkpoint * 40, checkpoint * 40 + size))),
            segments=tuple(map(entries.segment, range(size))),
            deleted=bytes((checkpoint,)) * size * 50,
        )
        home.opened().write(entries.head(checkpoint), [entry], [])
        assert load(home.open()) == (entries.head(checkpoint), [entry])


def test_topics_are_loaded_by_ascending_id(home: CatalogHome) -> None:
    ids = [1, 2, 255, 256, 1 << 32, (1 << 63) + 1]
    home.opened().write(entries.head(), [entries.plain_topic(topic_id) for topic_id in reversed(ids)], [])
    assert [entry.id for entry in load(home.open())[1]] == ids


def test_catalog_that_must_exist_and_does_not_is_lost(home: CatalogHome) -> None:
    with pytest.raises(CatalogLost, match="catalog"):
        home.open(must_exist=True)


def test_catalog_that_was_never_written_is_lost(home: CatalogHome) -> None:
    home.open()
    with pytest.raises(CatalogLost, match="catalog"):
        home.open(must_exist=True)


def test_closed_catalog_refuses_everything(home: CatalogHome) -> None:
    catalog = home.opened()
    catalog.close()
    catalog.close()
    with pytest.raises(CatalogFailed):
        catalog.write(entries.head(), [], [])
    with pytest.raises(CatalogFailed):
        load(catalog)


def test_damaged_topic_raises_when_it_is_read(home: CatalogHome) -> None:
    home.opened().write(entries.head(), [entries.plain_topic(1), entries.plain_topic(2)], [])
    home.close()
    home.damage(topic_key(2))
    head, topics = home.open().load()
    assert head == entries.head()
    assert next(topics).id == 1
    with pytest.raises(DataCorrupt, match="topic 2 fails its checksum"):
        next(topics)


def test_damaged_head_raises(home: CatalogHome) -> None:
    home.opened().write(entries.head(), [], [])
    home.close()
    home.damage(b"H")
    with pytest.raises(DataCorrupt, match="head fails its checksum"):
        home.open().load()


IDS = st.integers(1, 4)


class CatalogMachine(RuleBasedStateMachine):
    """Both catalogs and the model, step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = TemporaryDirectory()
        self.places = [CatalogHome(kind, Path(self.directory.name)) for kind in ("rocksdb", "memory")]
        self.head: CatalogHead | None = None
        self.topics: dict[int, TopicEntry] = {}

    @rule(
        head=entries.HEADS,
        changed=st.lists(entries.ENTRIES, max_size=3),
        ids=st.permutations([1, 2, 3, 4]),
        removed=st.integers(0, 1),
    )
    def write(self, head: CatalogHead, changed: list[TopicEntry], ids: list[int], removed: int) -> None:
        placed = [replace(entry, id=topic_id) for entry, topic_id in zip(changed, ids, strict=False)]
        gone_ids = ids[len(placed) : len(placed) + removed]
        for catalog in self.catalogs:
            catalog.write(head, placed, gone_ids)
        self.head = head
        self.topics.update((entry.id, entry) for entry in placed)
        for topic_id in gone_ids:
            self.topics.pop(topic_id, None)

    @invariant()
    def reopened_catalogs_are_the_model(self) -> None:
        self.catalogs = [home.open() for home in self.places]
        for catalog in self.catalogs:
            assert load(catalog) == (self.head, [self.topics[topic_id] for topic_id in sorted(self.topics)])

    def teardown(self) -> None:
        for home in self.places:
            home.close()
        self.directory.cleanup()


TestCatalogs = CatalogMachine.TestCase
TestCatalogs.settings = settings(max_examples=6, stateful_step_count=6, deadline=None)
