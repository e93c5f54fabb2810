"""A local fold's file: read back after any crash, cut or flip as it was at one of its places, or refused."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eddyline.client.local_fold.file import COMPACT_BYTES_MIN, FoldFile, new_path, open_file, write_base
from eddyline.client.local_fold.frame import FRAME_MARK, VERSION, Change, FoldPosition, FoldScope, encode_file_head
from eddyline.core.errors import DataCorrupt, NewerFormat
from eddyline.core.records.fold_entry import encode_entry
from eddyline.core.records.record import MetaEntry, Op, Record
from eddyline.core.runtime.fs import RealFs
from tests.support.clients.fold_steps import EPOCH, PATH, SCOPE, FileLife, held, live, look, put
from tests.support.golden import golden
from tests.support.sim.faulty_fs import Fault, FaultyFs
from tests.support.sim.fs import Crashed, SimFs

if TYPE_CHECKING:
    from tests.support.sim.fs import CrashKind


def new_disk() -> SimFs:
    fs = SimFs()
    fs.mkdir(PATH.parent)
    fs.fsync_dir(PATH.parent.parent)
    return fs


def lived() -> tuple[FileLife, SimFs]:
    """A file with a base, synced changes behind it, and a clean end."""
    fs = new_disk()
    life = FileLife(fs)
    life.base(dict([put("ka", "1"), put("kb", "2")]), FoldPosition(EPOCH, 2))
    life.append([put("ka", "3"), put("kc", "4")], FoldPosition(EPOCH, 4))
    life.sync()
    life.append([(b"kb", None)], FoldPosition(EPOCH, 5, 9))
    return life, fs


def test_what_was_appended_is_read_back() -> None:
    life, fs = lived()
    life.close()
    assert look(fs) == life.held[-1] == held(dict([put("ka", "3"), put("kc", "4")]), FoldPosition(EPOCH, 5, 9))
    assert life.held[-1] == look(fs, for_writing=False)


def of_every_kind() -> tuple[FileLife, SimFs]:
    """A base, changes, a mark and a deletion, with entries as the fold has them."""
    fs = new_disk()
    life = FileLife(fs)
    plain = encode_entry(Record(1, 1_700_000_000_000, 0, Op.PUT, b"ka", b"one"))
    rich = encode_entry(
        Record(3, 1_700_000_000_001, 5, Op.PUT, b"kb", b"", "tag", "node", (MetaEntry("m", b"v"),), b"\x09")
    )
    life.base({b"ka": plain}, FoldPosition(EPOCH, 2, 1_700_000_000_002))
    life.append([(b"kb", rich), (b"ka", None)], FoldPosition(EPOCH, 4, 1_700_000_000_003))
    life.sync()
    life.append([], FoldPosition(EPOCH, 4, 1_700_000_000_004))
    life.append([], FoldPosition(EPOCH, 4, 1_700_000_000_004, deleted=True))
    return life, fs


def test_format_1_is_read_for_ever() -> None:
    life, fs = of_every_kind()
    assert bytes(fs.content(PATH)) == golden("local-fold-1.bin")
    fs.content(PATH)[:] = golden("local-fold-1.bin")
    assert look(fs) == life.held[-1]


def test_every_crash_of_every_call_leaves_one_of_its_states() -> None:
    whole = new_disk()
    before = whole.calls
    live(FileLife(whole))
    tried = 0
    for crash_at in range(before + 1, whole.calls + 1):
        for outcome in range(4):
            fs = new_disk().reboot("kill", seed=crash_at * 4 + outcome, crash_at=crash_at - before)
            life = FileLife(fs)
            with pytest.raises(Crashed):
                live(life)
            kind: CrashKind = "power" if outcome else "kill"
            after = fs.reboot(kind, seed=outcome)
            # The call that the machine stopped in may have done its work; what came before a sync is there in any case.
            oldest = life.durable if kind == "power" else max(life.durable, len(life.held) - 2)
            try:
                found = look(after)
            except FileNotFoundError:
                assert life.durable < 0, f"crash_at={crash_at} {kind} seed={outcome}: the file is gone"
                continue
            assert found in life.held[max(oldest, 0) :], f"crash_at={crash_at} {kind} seed={outcome}"
            assert look(after) == found, "opening it twice changed something"
            again = FileLife(after, dict(found.entries), [found], 0)
            entries: dict[bytes, bytes] = {}
            again.file = open_file(after, PATH, entries)
            again.append([put("kz", "later")], FoldPosition(EPOCH + 2, 1))
            again.close()
            assert look(after.reboot("power")) == again.held[-1]
            tried += 1
    assert tried > 100


@pytest.mark.parametrize("clean", [True, False])
def test_a_cut_at_every_byte_leaves_an_older_state_or_is_refused(clean: bool) -> None:
    life, fs = lived()
    if clean:
        life.close()
    whole = bytes(fs.content(PATH))
    base_end = len(whole_base())
    seen = set()
    for size in range(len(whole)):
        disk = fs.reboot("kill")
        del disk.content(PATH)[size:]
        if size < base_end:
            with pytest.raises(DataCorrupt):
                look(disk)
            continue
        found = look(disk)
        seen.add(life.held.index(found))
    assert seen == ({0, 1, 2} if clean else {0, 1})


def whole_base() -> bytes:
    """The file of `lived` with its base only."""
    fs = new_disk()
    FileLife(fs).base(dict([put("ka", "1"), put("kb", "2")]), FoldPosition(EPOCH, 2))
    return bytes(fs.content(PATH))


@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
def test_a_flip_at_every_byte_that_was_on_the_disk_is_refused(flip: int) -> None:
    life, fs = lived()
    life.close()
    whole = bytes(fs.content(PATH))
    # The clean end's own frame, which says nothing but that all before it was synced, may be taken for a torn tail.
    last = whole.rindex(FRAME_MARK)
    for at in range(len(whole)):
        disk = fs.reboot("kill")
        disk.content(PATH)[at] ^= flip
        if at < last:
            with pytest.raises(DataCorrupt) as refused:
                look(disk)
            assert refused.value.metadata["file"] == str(PATH)
            assert bytes(disk.content(PATH)) != whole, "what is refused is left as it is"
        else:
            assert look(disk) == life.held[-1]


def test_a_flip_in_what_was_not_synced_leaves_an_older_state() -> None:
    life, fs = lived()
    whole = bytes(fs.content(PATH))
    last = whole.rindex(FRAME_MARK)
    for at in range(last, len(whole)):
        disk = fs.reboot("kill")
        disk.content(PATH)[at] ^= 0x10
        assert look(disk) == life.held[1]


def test_bytes_of_a_value_are_never_taken_for_a_frame() -> None:
    fs = new_disk()
    life = FileLife(fs)
    life.base({}, FoldPosition(EPOCH, 0))
    life.append([put("k", "v")], FoldPosition(EPOCH, 1))
    life.sync()
    life.append([put("k2", "v2")], FoldPosition(EPOCH, 2))
    frames = bytes(fs.content(PATH))[len(encode_file_head(SCOPE, base_end=0, snapshot_ms=0)) :]
    life.append([(b"frames", frames)], FoldPosition(EPOCH, 3))
    life.append([put("k3", "v3")], FoldPosition(EPOCH, 4))
    disk = fs.reboot("kill")
    disk.content(PATH)[bytes(disk.content(PATH)).index(b"frames")] ^= 1
    assert look(disk) == life.held[2], "the copies of frames in it are not where they were written"


def test_a_file_of_a_later_version_is_left_alone() -> None:
    _, fs = lived()
    fs.content(PATH)[8] = VERSION + 1
    with pytest.raises(NewerFormat):
        look(fs)


@pytest.mark.parametrize("data", [b"", b"EDYLFOLD", b"x" * 100, b"EDYLFOLD" + bytes(100)])
def test_what_is_no_fold_is_refused(data: bytes) -> None:
    _, fs = lived()
    content = fs.content(PATH)
    content[:] = data
    with pytest.raises(DataCorrupt):
        look(fs)


def test_a_new_file_that_was_not_finished_is_forgotten() -> None:
    life, fs = lived()
    fs.crash_at = fs.calls + 3
    with pytest.raises(Crashed):
        life.compact()
    after = fs.reboot("kill")
    assert after.exists(new_path(PATH))
    assert look(after) == life.held[-1]
    entries: dict[bytes, bytes] = {}
    open_file(after, PATH, entries).close()
    write_base(after, PATH, SCOPE, FoldPosition(EPOCH, 9), entries=entries.items(), snapshot_ms=0).close()
    assert not after.exists(new_path(PATH))


@pytest.mark.parametrize("operation", ["pwritev", "fdatasync"])
def test_a_file_that_failed_takes_nothing_more_and_opens_as_it_was(operation: str) -> None:
    sim = new_disk()
    fs = FaultyFs(sim)
    life = FileLife(fs)
    life.base(dict([put("ka", "1")]), FoldPosition(EPOCH, 2))
    fs.next_fault(operation, error=errno.ENOSPC)
    with pytest.raises(OSError, match="No space left"):
        life.append([put("kb", "2")], FoldPosition(EPOCH, 3))
        life.sync()
    with pytest.raises(OSError, match="open the file again"):
        life.append([put("kb", "2")], FoldPosition(EPOCH, 3))
    with pytest.raises(OSError, match="open the file again"):
        life.sync()
    life.close()
    assert look(sim) in life.held


def test_short_writes_are_gone_on_with() -> None:
    fs = FaultyFs(new_disk(), [Fault("pwritev", call, short=7) for call in range(1, 20, 2)])
    life = FileLife(fs)
    life.base(dict([put("ka", "1")]), FoldPosition(EPOCH, 2))
    life.append([put("kb", "2")], FoldPosition(EPOCH, 3))
    life.close()
    assert look(fs) == life.held[-1]


def test_frames_larger_than_what_is_read_at_once_are_read(tmp_path: Path) -> None:
    entries = {b"k%d" % number: bytes(1 << 20) for number in range(9)}
    path = tmp_path / "f"
    file = write_base(RealFs(), path, SCOPE, FoldPosition(1, 9), entries=entries.items(), snapshot_ms=0)
    file.append([(b"large", b"x" * (9 << 20)), (b"k0", None)], FoldPosition(1, 11))
    file.close()
    found: dict[bytes, bytes] = {}
    open_file(RealFs(), path, found).close()
    del entries[b"k0"]
    assert found == {**entries, b"large": b"x" * (9 << 20)}


def test_compaction_is_wanted_when_more_is_garbage_than_live() -> None:
    fs = new_disk()
    file = write_base(fs, PATH, SCOPE, FoldPosition(1, 1), entries=[put("k", "v")], snapshot_ms=0)
    rounds, value = 0, b"x" * 10_000
    while not file.wants_compaction(len(value)):
        file.append([(b"k", value)], FoldPosition(1, rounds))
        rounds += 1
    assert file.size == pytest.approx(COMPACT_BYTES_MIN, rel=0.05)
    file.close()


KEYS = st.sampled_from([b"k", b"ka", b"kb", b"kb\xff", b""])
CHANGES = st.lists(st.tuples(KEYS, st.none() | st.binary(max_size=40)), max_size=6)
STEPS = st.lists(
    st.tuples(st.just("append"), CHANGES)
    | st.tuples(st.sampled_from(["sync", "compact", "delete", "base", "reopen", "kill", "power"]), st.just([])),
    max_size=25,
)


@given(STEPS, st.integers(0, 1 << 30))
def test_any_life_of_it_is_what_a_dict_would_be(steps: list[tuple[str, list[Change]]], seed: int) -> None:
    fs = new_disk()
    life = FileLife(fs)
    life.base({}, FoldPosition(1, 1))
    for seq, (step, changes) in enumerate(steps, 2):
        assert life.file is not None
        if step == "append":
            life.append(changes, FoldPosition(1, seq))
        elif step == "sync":
            life.sync()
        elif step == "compact":
            life.compact()
        elif step == "delete":
            life.append([], FoldPosition(1, seq, deleted=True))
        elif step == "base":
            life.base({b"k": b"%d" % seq}, FoldPosition(1, seq))
        else:
            life = reopened(life, fs, step, seed + seq)
            assert isinstance(life.fs, SimFs)
            fs = life.fs
    assert life.file is not None
    life.close()
    assert look(fs) == life.held[-1]


def reopened(life: FileLife, fs: SimFs, step: str, seed: int) -> FileLife:
    """The life after a clean end or a crash."""
    assert life.file is not None
    if step == "reopen":
        life.close()
    kind: CrashKind = "power" if step == "power" else "kill"
    after = fs.reboot(kind, seed=seed)
    entries: dict[bytes, bytes] = {}
    file: FoldFile = open_file(after, PATH, entries)
    found = held(entries, file.place)
    assert found in (life.held[life.durable :] if step == "power" else life.held[-1:])
    return FileLife(after, entries, [found], 0, file)


def test_the_scope_is_in_the_file(tmp_path: Path) -> None:
    scope = FoldScope("ä.b", (b"", b"\xff" * 1024))
    path = tmp_path / "f"
    write_base(RealFs(), path, scope, FoldPosition(1, 1), entries=[], snapshot_ms=77).close()
    file = open_file(RealFs(), path, {}, for_writing=False)
    file.close(clean=False)
    assert (file.head.scope, file.head.snapshot_ms) == (scope, 77)
