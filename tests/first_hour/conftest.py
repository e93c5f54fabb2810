"""A terminal for each user, in a folder of its own, beside one cluster for all: their topics have different names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="package")
def cluster_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a cluster that runs."""
    terminal = Terminal(tmp_path_factory.mktemp("cluster"))
    with terminal.runs("eddyline up --free-ports", until="eddyline status"):
        yield terminal.folder / "eddyline-data"


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory, cluster_folder: Path) -> Terminal:
    """A terminal in the folder where the cluster was started, as far as commands see."""
    terminal = Terminal(tmp_path_factory.mktemp("user"))
    (terminal.folder / "eddyline-data").symlink_to(cluster_folder)
    return terminal
