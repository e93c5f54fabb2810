"""Texts of `eddyline watch --explain`; the command itself is in `test_watch.py`."""

from __future__ import annotations

import pytest

from eddyline.cli.commands.data.explain import backlog_text
from eddyline.client.watch.explain import WatchBacklog


@pytest.mark.parametrize(
    ("backlog", "text"),
    [
        (None, "whether its program reads is not visible"),
        (WatchBacklog(0, 0, 0, 0), "its program has read all"),
        (WatchBacklog(0, 0, 4096, 136_000), "4KiB at most is sent and not read, for 2 min"),
        (
            WatchBacklog(2048, 3_000, 524_288, 136_000),
            "2KiB waits for its window, for 3 s; 512KiB at most is sent and not read, for 2 min",
        ),
    ],
)
def test_backlog_says_what_the_window_shows_of_the_program(backlog: WatchBacklog | None, text: str) -> None:
    assert backlog_text(backlog) == text
