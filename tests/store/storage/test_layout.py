"""File names and their parsers."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eddyline.store.storage.layout import (
    Layout,
    SegmentId,
    base_file,
    parse_base_name,
    parse_segment_name,
    parse_temporary,
    parse_topic_dir,
    segment_file,
    temporary_file,
)
from tests.support.sim.fs import SimFs

DIRECTORY = Path("/data/topics/000000000000000a")
u64 = st.integers(0, (1 << 64) - 1)
u32 = st.integers(0, (1 << 32) - 1)


@given(st.builds(SegmentId, u64, u64, u32))
def test_segment_name_is_parsed_to_its_id(segment: SegmentId) -> None:
    assert parse_segment_name(segment_file(DIRECTORY, segment).name) == segment


@given(u64, u32)
def test_base_name_is_parsed_to_its_id(seq: int, generation: int) -> None:
    assert parse_base_name(base_file(DIRECTORY, seq, generation).name) == (seq, generation)


def test_segments_sort_by_their_first_seq() -> None:
    names = [segment_file(DIRECTORY, SegmentId(first, first + 5, 99 - first)).name for first in (1, 10, 17, 300)]
    assert names == sorted(names)


def test_temporary_name_gives_the_final_name() -> None:
    segment = segment_file(DIRECTORY, SegmentId(1, 2, 3))
    assert temporary_file(segment).parent == DIRECTORY
    assert parse_temporary(temporary_file(segment).name) == segment.name
    assert parse_segment_name(temporary_file(segment).name) is None
    base = base_file(DIRECTORY, 1, 2)
    assert parse_temporary(temporary_file(base).name) == base.name


@pytest.mark.parametrize("name", ["x.tmp", "seg-1-2-3.arrow.tmp", "seg-1-2-3.arrow", "identity.tmp", ".tmp", "A" * 16])
def test_foreign_name_is_not_parsed(name: str) -> None:
    assert parse_temporary(name) is None
    assert parse_segment_name(name) is None
    assert parse_base_name(name) is None
    assert parse_topic_dir(name) is None


def test_final_name_is_no_temporary() -> None:
    assert parse_temporary(segment_file(DIRECTORY, SegmentId(1, 2, 3)).name) is None


def test_topic_directory_is_created_durably() -> None:
    fs, layout = SimFs(), Layout(Path("/data"))
    layout.make_directories(fs)
    topic_dir = layout.make_topic_dir(fs, 10)
    assert topic_dir == layout.make_topic_dir(fs, 10) == DIRECTORY
    assert parse_topic_dir(topic_dir.name) == 10
    assert fs.reboot("power").exists(topic_dir)
