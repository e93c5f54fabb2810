"""The first hour of who looks after a cluster: status, a role that hangs, typing errors."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.support.terminal import Terminal

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration
PID_OF_INGEST = "$(python -c \"import json; print(json.load(open('eddyline-data/cluster.json'))['ingest']['pid'])\")"


def test_status_without_a_cluster_states_how_to_start_one(tmp_path: Path) -> None:
    Terminal(tmp_path).types("eddyline status", "eddyline up", code=1)


def test_status_states_that_all_is_well_in_the_width_of_the_terminal(shell: Terminal) -> None:
    page = shell.types(
        "COLUMNS=80 eddyline status", "all is well: 3 roles", "disk", "fold", "watches", "since the start"
    )
    assert max(map(len, page.splitlines())) <= 80
    verdict = json.loads(shell.types("eddyline status -o json").splitlines()[-1])
    assert (verdict["well"], verdict["troubles"]) == (True, [])


def test_role_that_hangs_is_named(shell: Terminal) -> None:
    shell.types(f"kill -STOP {PID_OF_INGEST}")
    try:
        said = shell.types("eddyline verify certs", "ingest at 127.0.0.1:", code=1)
        assert "eddyline up" not in said
        shell.types("eddyline status", "! ingest at 127.0.0.1:", "is away", code=1)
    finally:
        shell.types(f"kill -CONT {PID_OF_INGEST}")


def test_typing_errors_are_answered_with_what_was_meant(shell: Terminal) -> None:
    shell.types("eddyline statsu", "did you mean status?", code=2)
    shell.types("eddyline topic describe t", "did you mean get?", code=2)
    shell.types("eddyline topic create t --tll 5m", "did you mean --ttl", code=2)
    shell.types("eddyline topic ls")
    shell.types("EDDYLINE_STORE_DATADIR=x python -m eddyline.store", "did you mean EDDYLINE_STORE_DATA_DIR", code=1)


def test_output_that_goes_nowhere_is_reported(shell: Terminal) -> None:
    for line in ("eddyline status", "eddyline topic list -o json", "eddyline --help"):
        said = shell.types(f"{line} > /dev/full", "No space left on device", code=1)
        assert said.count("\n") == 1
