"""Checks the data directory of an idle store: named files, and no others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eddyline.store.storage.layout import base_file, parse_topic_dir, wal_numbers

if TYPE_CHECKING:
    from pathlib import Path

    from eddyline.core.runtime.fs import Fs
    from eddyline.store.shard.shard import Shard
    from eddyline.store.storage.layout import Layout


def check_files(link: Shard, fs: Fs, layout: Layout) -> None:
    """Check that every file is named, every named file exists, and none of ours was set aside. Raises AssertionError."""
    named = _named(link, layout)
    there: set[Path] = set()
    if fs.exists(layout.topics):
        for name in fs.listdir(layout.topics):
            assert parse_topic_dir(name) is not None, f"{name} is no topic's directory"
            there |= {layout.topics / name / inside for inside in fs.listdir(layout.topics / name)}
    assert there == named, (
        f"nobody names {sorted(map(str, there - named))}; not there {sorted(map(str, named - there))}"
    )
    assert not fs.exists(layout.orphans) or not fs.listdir(layout.orphans), "something of ours was set aside"
    for shard, committer in enumerate(link._engine.committers):
        directory = layout.wal_shard(shard)
        numbers = wal_numbers(fs.listdir(directory))
        assert numbers == list(range(numbers[0], numbers[-1] + 1)), f"WAL files {numbers} of shard {shard}"
        assert numbers[0] == committer.wal.oldest_number, (
            f"WAL files {numbers} of shard {shard}: older ones than are needed"
        )


def _named(link: Shard, layout: Layout) -> set[Path]:
    named: set[Path] = set()
    for topic in link._table.all():
        named |= {segment.path for segment in topic.segments}
        if topic.base is not None and topic.base.rows:  # an empty base has no file
            named.add(base_file(layout.topic_dir(topic.id), topic.base.seq, topic.base.generation))
    return named
