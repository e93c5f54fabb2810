"""Footers and open files cached between reads are bounded."""

from __future__ import annotations

from pathlib import Path

import pytest

from eddyline.core.errors import DataCorrupt
from eddyline.store.log.segments import Segment
from eddyline.store.log_io.files import LogFiles, footer_bytes
from eddyline.store.storage.segment.footer import SegmentSource
from eddyline.store.storage.segment.writer import write_segment
from tests.support.sim.fs import SimFs
from tests.support.store.simulated import rows

SEGMENTS = 4


def written(fs: SimFs) -> list[Segment]:
    segments: list[Segment] = []
    for number in range(SEGMENTS):
        path = Path(f"/segment-{number}")
        source = SegmentSource(1, "log", "LOG", 1, number + 1)
        footer = write_segment(fs, path, source, [rows("a").with_seqs(number + 1, 1)], compression="none")
        assert footer is not None
        segments.append(Segment(footer.summary, path))
    return segments


def test_footers_are_cached_up_to_a_bound_and_read_again_above_it() -> None:
    fs = SimFs()
    segments = written(fs)
    files = LogFiles(fs, [])
    each = footer_bytes(files.footer(segments[0]))
    files = LogFiles(fs, [], footer_bytes_max=2 * each)
    segments = [Segment(segment.summary, segment.path) for segment in segments]
    for segment in segments:
        assert files.footer(segment).summary == segment.summary
    assert [segment.footer is not None for segment in segments] == [False, False, True, True]
    assert files.footer_bytes == 2 * each
    assert files.footer(segments[0]).summary == segments[0].summary


def test_the_footer_used_last_stays() -> None:
    fs = SimFs()
    first, second, third, _ = written(fs)
    files = LogFiles(fs, [])
    files = LogFiles(fs, [], footer_bytes_max=2 * footer_bytes(files.footer(first)))
    first.footer = None
    for segment in (first, second, first, third):
        files.footer(segment)
    assert first.footer is not None
    assert second.footer is None


def test_a_footer_is_dropped_with_its_file() -> None:
    fs = SimFs()
    first, *_ = written(fs)
    files = LogFiles(fs, [])
    files.footer(first)
    files.forget(first.path)
    assert (first.footer, files.footer_bytes) == (None, 0)


def test_a_footer_cached_twice_counts_once() -> None:
    fs = SimFs()
    first, *_ = written(fs)
    files = LogFiles(fs, [])
    footer = files.footer(first)
    files.cache_footer(first, footer)
    assert files.footer_bytes == footer_bytes(footer)


def test_a_missing_file_is_data_corrupt() -> None:
    fs = SimFs()
    first, *_ = written(fs)
    files = LogFiles(fs, [])
    (entry,) = files.footer(first).batches
    fs.unlink(first.path)
    with pytest.raises(DataCorrupt, match="cannot be read"):
        files.batch(first, entry)
