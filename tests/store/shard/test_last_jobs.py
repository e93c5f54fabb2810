"""The end of a store: jobs whose callers were cancelled are over before what they read is closed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eddyline.store.catalog.rocksdb import RocksCatalog
from eddyline.store.fold.rocksdb import RocksFold
from eddyline.store.runtime.workers import ThreadWorker
from tests.support.store.real import real_store
from tests.support.store.simulated import kv_topic

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


class Noting(ThreadWorker):
    """Notes its first end, with its jobs done."""

    def __init__(self, name: str, threads: int, ended: list[str]) -> None:
        super().__init__(name, threads=threads)
        self._name, self._ended = name, ended

    def close(self) -> None:
        super().close()
        if self._name not in self._ended:
            self._ended.append(self._name)


async def test_fold_and_catalog_are_closed_behind_the_last_job_of_every_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []
    close_fold, close_catalog = RocksFold.close, RocksCatalog.close

    def fold_closes(fold: RocksFold) -> None:
        ended.append("the fold")
        close_fold(fold)

    def catalog_closes(catalog: RocksCatalog) -> None:
        ended.append("the catalog")
        close_catalog(catalog)

    monkeypatch.setattr(RocksFold, "close", fold_closes)
    monkeypatch.setattr(RocksCatalog, "close", catalog_closes)
    async with real_store(tmp_path / "data", workers=lambda name, threads: Noting(name, threads, ended)) as link:
        await kv_topic(link)
    assert set(ended[:-2]) == {"background", "reader", "wal-0", "fold"}
    assert ended[-2:] == ["the fold", "the catalog"]
