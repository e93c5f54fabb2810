"""The first hour of a backend developer: a topic, records in and out by command and by Python, and first mistakes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    """A terminal beside a cluster that runs in the same folder."""
    terminal = Terminal(tmp_path_factory.mktemp("backend"))
    with terminal.runs("eddyline up --free-ports", until="eddyline status"):
        yield terminal


def test_record_goes_in_and_comes_out(shell: Terminal) -> None:
    shell.types("eddyline topic create orders --kind kv")
    shell.types('eddyline append orders --key 17 \'{"state": "paid"}\'')
    shell.types("eddyline get orders 17", "paid")
    shell.types("eddyline status", "store", "ingest", "delivery")
