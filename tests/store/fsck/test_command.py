"""Check of a stopped directory: a clean one passes, each damage gives its finding, and the check changes nothing."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import pytest
from rocksdict import Options, Rdict

from eddyline.core.model.topic import Durability, Kind, TopicConfig
from eddyline.core.records.fold_entry import decode_entry
from eddyline.core.records.match import Match, MatchField, MatchKind
from eddyline.core.runtime.clock import SystemHost
from eddyline.core.runtime.fs import RealFs
from eddyline.store.catalog.catalog import BaseEntry
from eddyline.store.catalog.rocksdb import RocksCatalog
from eddyline.store.config import StoreSettings
from eddyline.store.env import Env, new_workers
from eddyline.store.fold.dump import dump_batches
from eddyline.store.fold.fold import FoldWrite
from eddyline.store.fold.rocksdb import RocksFold
from eddyline.store.fsck.command import fsck
from eddyline.store.limits.memory_budget import memory_plan
from eddyline.store.shard.lifecycle import open_store
from eddyline.store.storage.identity import read_identity, write_identity
from eddyline.store.storage.layout import Layout, base_file, wal_numbers
from eddyline.store.storage.segment.footer import SegmentSource
from eddyline.store.storage.segment.writer import write_segment
from tests.support.manual_clock import ManualClock
from tests.support.sim.worker import InlineWorker
from tests.support.store.simulated import append, puts, rows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from eddyline.store.shard.shard import Shard

FLIPS = 60
"""Flipped bits for each kind of file: each costs a whole check, 30 ms."""


class CheckOutput(NamedTuple):
    """Output of a check."""

    code: int
    findings: list[dict[str, str | int]]
    summary: dict[str, int]

    @property
    def locations(self) -> list[tuple[str | int, str]]:
        """Severity and file of each finding."""
        return [(finding["severity"], str(finding["file"])) for finding in self.findings]


async def fill(data_dir: Path) -> None:
    """A store on real files with segments, frames, deletes, floors and a fold; stopped clean."""
    settings = StoreSettings(listen="127.0.0.1:0", data_dir=str(data_dir), wal_file_bytes=65_536, disk_floor_bytes=0)
    machine = Env(
        fs=RealFs(),
        open_fold=partial(RocksFold, Layout(data_dir).fold),
        open_catalog=lambda must_exist: RocksCatalog(Layout(data_dir).catalog, must_exist=must_exist),
        clock=ManualClock(),
        host=SystemHost(),
        workers=new_workers(lambda name, threads: InlineWorker()),
        plan=memory_plan(settings.memory_bytes),
    )
    async with open_store(machine, settings, cluster_id="test") as link:
        await write(link)


async def write(link: Shard) -> None:
    for name, kind in (("log", Kind.LOG), ("kv", Kind.KV)):
        await link.create_topic(name, kind, TopicConfig(Durability.FSYNC, cap_records=40 if name == "log" else 0))
    for number in range(30):
        await append(link, "log", rows(f"{number}", f"{number} again"))
        await append(link, "kv", puts((f"k{number % 7}", f"{number}"), (f"only {number}", "x" * 50)))
        if number in (10, 20):
            for name in ("log", "kv"):
                topic = link._table.get(name)
                await link._parts.maintenance._sealer.seal(topic, topic.head_seq)
    await link.create_topic("fleeting", Kind.LOG, TopicConfig(Durability.EPHEMERAL))
    await append(link, "fleeting", rows("gone at the next start"))
    match = Match(MatchField.KEY, MatchKind.EQ, b"k3")
    await link.delete_records("kv", match=match)


@pytest.fixture(scope="module")
def filled_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data_dir = tmp_path_factory.mktemp("filled") / "store"
    asyncio.run(fill(data_dir))  # noqa: TID251
    return data_dir


@pytest.fixture
def data_dir(filled_dir: Path, tmp_path: Path) -> Path:
    shutil.copytree(filled_dir, tmp_path / "store")
    return tmp_path / "store"


def check(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> CheckOutput:
    content_before = dict(content(data_dir))
    code = fsck([str(data_dir), "-o", "json"])
    assert dict(content(data_dir)) == content_before, "a check changes no byte"
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [list(line) for line in lines[:-1]] == [["severity", "file", "offset", "what", "to_do"]] * (len(lines) - 1)
    return CheckOutput(code, lines[:-1], lines[-1]["summary"])


def content(data_dir: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(data_dir.rglob("*")):
        yield str(path), path.read_bytes() if path.is_file() else b""


def newest_wal(data_dir: Path) -> Path:
    """The newest file that has frames."""
    return max(path for path in Layout(data_dir).wal_shard(0).glob("*.wal") if path.read_bytes().strip(b"\0"))


def segments(data_dir: Path) -> list[Path]:
    return sorted(Layout(data_dir).topics.glob("*/seg-*.arrow"))


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(bytes(data))


def test_clean_directory_passes(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checked = check(data_dir, capsys)
    assert (checked.code, checked.findings) == (0, [])
    assert checked.summary["topics"] == 3
    assert checked.summary["files"] >= 5


def test_every_flipped_bit_of_segments_and_identity_is_reported(
    data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = random.Random(7)
    for path in (segments(data_dir)[0], segments(data_dir)[-1], Layout(data_dir).identity):
        whole = path.read_bytes()
        for _ in range(FLIPS // 3):
            bit = chosen.randrange(8 * len(whole))
            flip(path, bit)
            checked = check(data_dir, capsys)
            assert checked.code == 1, f"{path} bit {bit}"
            assert set(checked.locations) == {("error", str(path))}, f"{path} bit {bit}"
            assert f"{path} is corrupt at" not in str(checked.findings[0]["what"])
            path.write_bytes(whole)


def test_flipped_bits_of_the_wal_are_reported_unless_after_its_end(
    data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen, path = random.Random(8), newest_wal(data_dir)
    whole = path.read_bytes()
    frames = json.loads(Layout(data_dir).identity.read_text().splitlines()[0])["wal_bytes"]
    for number in range(FLIPS // 2):
        bit = chosen.randrange(8 * (frames if number % 5 else len(whole)))
        flip(path, bit)
        checked = check(data_dir, capsys)
        is_frame = bit // 8 < frames
        assert checked.code == int(is_frame), f"bit {bit}"
        assert checked.locations.count(("error", str(path))) == int(is_frame), f"bit {bit}"
        # Damage that makes a start fail is no tail to cut.
        assert not is_frame or ("note", str(path)) not in checked.locations, f"bit {bit}"
        path.write_bytes(whole)


def test_missing_identity_is_reported_as_a_start_treats_it(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Layout(data_dir).identity.unlink()
    checked = check(data_dir, capsys)
    assert (checked.code, checked.locations) == (1, [("error", str(Layout(data_dir).identity))])


def test_missing_files_are_reported(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (segments(data_dir)[0], newest_wal(data_dir)):
        kept = path.rename(data_dir.parent / "kept")
        checked = check(data_dir, capsys)
        assert (checked.code, checked.locations) == (1, [("error", str(path))])
        assert "missing" in str(checked.findings[0]["what"])
        kept.rename(path)


def test_missing_catalog_is_one_finding_and_files_are_still_checked(
    data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(Layout(data_dir).catalog)
    assert check(data_dir, capsys).locations == [("error", str(Layout(data_dir).catalog))]
    flip(segments(data_dir)[0], 1000)
    expected = [("error", str(Layout(data_dir).catalog)), ("error", str(segments(data_dir)[0]))]
    assert check(data_dir, capsys).locations == expected


def test_differing_fold_is_reported_by_keys(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = Layout(data_dir).fold
    families = {name: Options(raw_mode=True) for name in ("data", "meta")}
    database = Rdict(str(path), Options(raw_mode=True), families)
    data = database.get_column_family("data")
    key = next(iter(data.keys()))
    assert isinstance(key, bytes)
    assert decode_entry(key[8:], data[key]).key == key[8:]  # type: ignore[arg-type]
    data.delete(key)
    del data
    database.close()
    checked = check(data_dir, capsys)
    assert (checked.code, checked.locations) == (1, [("error", str(path))])
    assert f"key {key[8:]!r}"[4:].strip("b") in str(checked.findings[0]["what"])


def test_log_behind_its_fold_is_a_warning(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fold = RocksFold(Layout(data_dir).fold)
    (topic_id,) = fold.topics()
    head_seq = fold.applied(topic_id)
    fold.apply([FoldWrite(topic_id, head_seq + 3, [], [])])
    fold.close()
    checked = check(data_dir, capsys)
    assert checked.locations == [("warning", str(Layout(data_dir).fold))]
    assert f"is at seq {head_seq + 3}, its log at {head_seq}" in str(checked.findings[0]["what"])
    assert "UNSYNCED" in str(checked.findings[0]["to_do"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"record_bytes": 1}, "bytes of live records, by its counter"),
        ({"delete_floor": 10}, "live records, by its counter"),
        ({"delete_floor": 1 << 40}, "above its head"),
        ({"next_generation": -1}, "its next one is 1"),
        ({"segmented_seq": 2}, "live records, by its counter"),
        ({"head_seq": 5}, "missing"),
    ],
)
def test_numbers_that_do_not_match_the_rows_are_reported(
    data_dir: Path, capsys: pytest.CaptureFixture[str], change: dict[str, int], words: str
) -> None:
    catalog = RocksCatalog(Layout(data_dir).catalog)
    head, entries = catalog.load()
    assert head is not None
    (entry,) = [one for one in entries if one.name == "kv"]
    values = {name: getattr(entry, name) + more for name, more in change.items()}
    if "next_generation" in change:
        values["next_generation"] = 1
    catalog.write(head, [replace(entry, **values)], ())
    catalog.close()
    checked = check(data_dir, capsys)
    assert checked.code == 1
    assert any(words in str(finding["what"]) for finding in checked.findings), checked.findings


def test_flipped_bits_of_a_base_are_reported(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = with_base(data_dir)
    assert check(data_dir, capsys).findings == []
    chosen, whole = random.Random(9), path.read_bytes()
    for _ in range(FLIPS // 3):
        bit = chosen.randrange(8 * len(whole))
        flip(path, bit)
        assert check(data_dir, capsys).locations == [("error", str(path))], f"bit {bit}"
        path.write_bytes(whole)


def with_base(data_dir: Path) -> Path:
    """Write a base of the KV topic's present fold; return its path."""
    layout = Layout(data_dir)
    catalog, fold = RocksCatalog(layout.catalog), RocksFold(layout.fold)
    head, entries = catalog.load()
    assert head is not None
    (entry,) = [one for one in entries if one.name == "kv"]
    generation = entry.next_generation
    path = base_file(layout.topic_dir(entry.id), entry.head_seq, generation)
    source = SegmentSource(entry.id, "kv", "KV", entry.config_version, generation, True, entry.head_seq)
    view = fold.view(entry.id)
    footer = write_segment(RealFs(), path, source, dump_batches(view))
    assert footer is not None
    view.close()
    base = BaseEntry(entry.head_seq, generation, footer.summary.rows, footer.summary.file_bytes)
    catalog.write(head, [replace(entry, base=base, next_generation=generation + 1)], ())
    catalog.close()
    fold.close()
    return path


def test_flipped_bits_of_rocksdb_are_reported_or_harmless(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clean = check(data_dir, capsys)
    chosen, layout = random.Random(10), Layout(data_dir)
    files = [path for path in (*layout.catalog.iterdir(), *layout.fold.iterdir()) if path.suffix in (".sst", ".log")]
    files = [path for path in files if path.stat().st_size]
    assert files
    for _ in range(FLIPS // 2):
        path = chosen.choice(files)
        whole = path.read_bytes()
        flip(path, chosen.randrange(8 * len(whole)))
        checked = check(data_dir, capsys)
        assert checked.code == 1 or checked.summary["topics"] == clean.summary["topics"], path
        path.write_bytes(whole)


def test_foreign_files_are_reported_and_quarantined_ones_counted(
    data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    foreign = [segments(data_dir)[0].with_name("notes"), Layout(data_dir).wal / "notes"]
    for path in foreign:
        path.write_bytes(b"foreign")
    temporary = segments(data_dir)[0].with_name("seg-0000000000000000-0000000000000000-00000009.arrow.tmp")
    temporary.write_bytes(b"half")
    (data_dir / "orphans" / "2026-01-01").mkdir(parents=True)
    (data_dir / "orphans" / "2026-01-01" / "one").touch()
    checked = check(data_dir, capsys)
    assert checked.code == 1
    assert sorted(checked.locations) == sorted(
        [("note", str(temporary))] + [("warning", str(path)) for path in foreign],
    )
    assert checked.summary["orphans"] == 1
    (data_dir / "README").touch()
    assert ("error", str(data_dir / "README")) in check(data_dir, capsys).locations


def test_temporary_named_by_the_log_is_read(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = segments(data_dir)[0]
    waiting = path.rename(path.with_name(path.name + ".tmp"))
    checked = check(data_dir, capsys)
    assert (checked.code, checked.locations) == (0, [("note", str(waiting))])
    flip(waiting, 1000)
    assert check(data_dir, capsys).code == 1


def test_torn_tail_of_a_stop_that_was_not_clean_is_a_note(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = newest_wal(data_dir)
    identity = read_identity(RealFs(), Layout(data_dir))
    assert identity is not None
    write_identity(RealFs(), Layout(data_dir), replace(identity, clean=False, wal_bytes=0))
    path.write_bytes(path.read_bytes() + b"EDYF and no more" + bytes(64))
    later = [one for one in wal_numbers([p.name for p in path.parent.iterdir()]) if one > int(path.stem, 16)]
    for number in later:
        (path.parent / f"{number:016x}.wal").unlink()
    checked = check(data_dir, capsys)
    assert ("note", str(path)) in checked.locations
    assert not [location for location in checked.locations if location[0] == "error"]


@pytest.mark.parametrize(
    ("stdout", "error_text"),
    [
        ("> /dev/full", "standard output cannot be written: No space left on device"),
        (">&-", "standard output is closed"),
    ],
)
def test_unwritable_output_is_one_error_line(data_dir: Path, stdout: str, error_text: str) -> None:
    words = ("sh", "-c", f'"$0" -m eddyline.store fsck "$1" {stdout}', sys.executable, str(data_dir))
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr.splitlines()[-1]) == (2, f"eddyline fsck: {error_text}")
    assert "Traceback" not in ended.stderr


def test_directory_in_use_or_missing_cannot_be_checked(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = RealFs().lock(Layout(data_dir).lock, b"pid 1")
    assert fsck([str(data_dir)]) == 2
    assert "in use" in capsys.readouterr().err
    lock.release()
    assert fsck([str(data_dir / "none")]) == 2
    assert fsck([str(data_dir.parent)]) == 2
    assert "is not a store's data directory" in capsys.readouterr().err


def test_program_prints_one_line_per_finding_and_returns_its_code(data_dir: Path) -> None:
    flip(segments(data_dir)[0], 1000)
    done = subprocess.run(
        [sys.executable, "-m", "eddyline.store", "fsck", str(data_dir)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    finding, summary = done.stdout.splitlines()
    assert finding.startswith(f"error: {segments(data_dir)[0]} at ")
    assert summary.startswith(f"not clean: {data_dir}: 3 topics, ")
    assert done.stderr == ""
