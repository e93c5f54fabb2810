"""The first hour of who looks after a cluster: status, a source without its bucket, a role that hangs, typing errors."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.support.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration
PID_OF_INGEST = "$(python -c \"import json; print(json.load(open('eddyline-data/cluster.json'))['ingest']['pid'])\")"


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    """A terminal beside a cluster that runs in the same folder."""
    terminal = Terminal(tmp_path_factory.mktemp("operator"))
    terminal.types("eddyline status", "eddyline up", code=1)
    with terminal.runs("eddyline up --free-ports", until="eddyline status"):
        yield terminal


def test_status_says_that_all_is_well_in_the_width_of_the_terminal(shell: Terminal) -> None:
    page = shell.types(
        "COLUMNS=80 eddyline status", "all is well: 3 roles", "disk", "fold", "watches", "since the start"
    )
    assert max(map(len, page.splitlines())) <= 80
    verdict = json.loads(shell.types("eddyline status -o json").splitlines()[-1])
    assert (verdict["well"], verdict["troubles"]) == (True, [])


def test_source_without_its_bucket_is_the_first_thing_that_status_says(shell: Terminal) -> None:
    shell.types("eddyline source create certs --bucket certs")
    shell.types("until eddyline source get certs | grep -q SOURCE_LOST; do sleep 0.2; done")
    page = shell.types("eddyline status", code=1)
    assert page.splitlines()[1] == "  ! source certs is SOURCE_LOST: NATS has no bucket certs"
    shell.types("eddyline kv get certs a.example.org", "SOURCE_LOST", "KEY_NOT_FOUND", code=1)
    shell.types("eddyline source delete certs --yes")
    shell.types("eddyline status", "all is well")


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


def test_output_that_goes_nowhere_is_said(shell: Terminal) -> None:
    for line in ("eddyline status", "eddyline topic list -o json", "eddyline --help"):
        said = shell.types(f"{line} > /dev/full", "No space left on device", code=1)
        assert said.count("\n") == 1
