"""A reader who follows one append through the store meets few files, and seldom returns to one (`tests.house.walk`)."""

from __future__ import annotations

from tests.house.walk import walk_apply_batch

ROOMS_MAX = 13
FILES_MAX = 32
RETURNS_MAX = 66
"""A tenth above what the walk had when rooms were made (11, 30 and 59): a step more is no reason to fail."""


def test_one_append_passes_few_files_and_returns_to_few() -> None:
    walk = walk_apply_batch()
    assert len(walk.rooms) <= ROOMS_MAX, walk.rooms
    assert len(walk.files) <= FILES_MAX, walk.files
    assert walk.return_count <= RETURNS_MAX
