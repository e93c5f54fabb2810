"""The catalog on RocksDB in its differences from the one in memory: a killed process, damage, locks, reads without a
lock."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from eddyline.core.errors import CatalogLost, DataCorrupt
from eddyline.store.catalog.catalog import CatalogFailed
from eddyline.store.catalog.rocksdb import RocksCatalog, open_read_only
from tests.support.storage import catalog_entries as entries
from tests.support.storage import catalog_writer
from tests.support.storage.killed_writer import killed_writer

if TYPE_CHECKING:
    from eddyline.store.catalog.catalog import Catalog, TopicEntry

ACKS_BEFORE_KILL = (1, 20, 50)


def topics_of(catalog: Catalog) -> list[TopicEntry]:
    return list(catalog.load()[1])


def opened(path: Path) -> RocksCatalog:
    catalog = RocksCatalog(path)
    topics_of(catalog)
    return catalog


def test_killed_process_leaves_complete_steps_and_every_acknowledged_one(tmp_path: Path) -> None:
    path = tmp_path / "catalog"
    for acks in ACKS_BEFORE_KILL:
        acknowledged = killed_writer(catalog_writer, path, acks)
        catalog = RocksCatalog(path, must_exist=True)
        head, topics = catalog.load()
        assert head is not None
        assert acknowledged <= head.checkpoint <= acknowledged + 1
        assert list(topics) == catalog_writer.topics_at(head.checkpoint)
        catalog.close()


def test_open_catalog_is_locked_but_readable(tmp_path: Path) -> None:
    path = tmp_path / "catalog"
    catalog = opened(path)
    catalog.write(entries.head(), [entries.plain_topic(1)], [])
    with pytest.raises(CatalogFailed, match="lock"):
        RocksCatalog(path)
    look = open_read_only(path)
    assert look.load()[0] == entries.head()
    assert topics_of(look) == [entries.plain_topic(1)]
    with pytest.raises(CatalogFailed):
        look.write(entries.head(2), [], [1])
    look.close()
    catalog.write(entries.head(3), [], [1])
    catalog.close()


def test_read_only_open_changes_no_byte(tmp_path: Path) -> None:
    path = tmp_path / "catalog"
    catalog = opened(path)
    catalog.write(entries.head(), [entries.plain_topic(1)], [])
    catalog.close()
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    look = open_read_only(path)
    assert len(topics_of(look)) == 1
    look.close()
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before


def test_read_only_open_creates_no_catalog(tmp_path: Path) -> None:
    with pytest.raises(CatalogLost):
        open_read_only(tmp_path / "catalog")
    assert not (tmp_path / "catalog").exists()


def test_catalog_without_its_manifest_is_lost_if_it_must_exist(tmp_path: Path) -> None:
    path = tmp_path / "catalog"
    catalog = opened(path)
    catalog.write(entries.head(), [], [])
    catalog.close()
    (path / "CURRENT").unlink()
    with pytest.raises(CatalogLost):
        RocksCatalog(path, must_exist=True)


def test_damaged_table_raises_while_topics_are_loaded(tmp_path: Path) -> None:
    catalog = opened(tmp_path)
    catalog.write(entries.head(), [entries.plain_topic(topic_id) for topic_id in range(1, 2000)], [])
    assert catalog._database is not None
    catalog._database.flush(True)
    catalog.close()
    table = max(tmp_path.glob("*.sst"), key=lambda path: path.stat().st_size)
    with table.open("r+b") as file:
        file.seek(table.stat().st_size // 2)
        file.write(b"\xff" * 64)
    catalog = RocksCatalog(tmp_path)
    with pytest.raises(DataCorrupt):
        topics_of(catalog)
    catalog.close()


def test_consecutive_writes_of_many_memtables_succeed(tmp_path: Path) -> None:
    catalog = opened(tmp_path)
    random = Random(1)
    for checkpoint in range(1, 9):
        large = [replace(entries.plain_topic(n), deleted=random.randbytes(4 << 20)) for n in range(1, 5)]
        catalog.write(entries.head(checkpoint), large, [])
    catalog.close()
    again = RocksCatalog(tmp_path)
    assert topics_of(again) == large
    again.close()
