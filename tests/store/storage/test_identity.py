"""The identity file: replaced atomically, and refused if damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from eddyline.core.errors import DataCorrupt
from eddyline.store.storage.identity import Identity, decode_identity, encode_identity, read_identity, write_identity
from eddyline.store.storage.layout import Layout
from tests.support.sim.fs import Crashed, SimFs

LAYOUT = Layout(Path("/data"))
FIRST = Identity("local", 0, 1, instance=1, boot_id="boot-1", clean=False)
SECOND = Identity("local", 0, 1, instance=2, boot_id="boot-1", clean=True)


def test_fresh_directory_has_no_identity() -> None:
    fs = SimFs()
    LAYOUT.make_directories(fs)
    assert read_identity(fs, LAYOUT) is None


def test_written_identity_is_read_back() -> None:
    fs = SimFs()
    LAYOUT.make_directories(fs)
    for identity in (FIRST, SECOND):
        write_identity(fs, LAYOUT, identity)
        assert read_identity(fs, LAYOUT) == identity


def test_every_flipped_bit_and_every_cut_is_refused() -> None:
    encoded = encode_identity(FIRST)
    damages = [encoded[:length] for length in range(len(encoded))]
    for byte in range(len(encoded)):
        for bit in range(8):
            damaged = bytearray(encoded)
            damaged[byte] ^= 1 << bit
            damages.append(bytes(damaged))
    for damage in damages:
        with pytest.raises(DataCorrupt) as caught:
            decode_identity(LAYOUT.identity, damage)
        assert caught.value.metadata == {"file": "/data/identity", "offset": "0"}


def test_later_format_is_refused_with_its_number() -> None:
    later = encode_identity(Identity("local", 0, 1, 1, "boot-1", clean=True, format=2))
    with pytest.raises(DataCorrupt, match="format 2"):
        decode_identity(LAYOUT.identity, later)


@pytest.mark.parametrize("crash", ["kill", "power"])
def test_crash_at_any_call_leaves_the_old_identity_or_the_new_one(crash: str) -> None:
    base = SimFs()
    LAYOUT.make_directories(base)
    write_identity(base, LAYOUT, FIRST)
    outcomes = set[Identity | None]()
    for seed in range(5):
        for call in range(1, 20):
            fs = base.reboot("kill", seed=seed, crash_at=call)
            try:
                write_identity(fs, LAYOUT, SECOND)
            except Crashed:
                outcomes.add(read_identity(fs.reboot("kill" if crash == "kill" else "power"), LAYOUT))
            else:
                assert read_identity(fs.reboot("power"), LAYOUT) == SECOND
    assert outcomes == {FIRST, SECOND}
