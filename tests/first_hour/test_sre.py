"""The first hour of an SRE: keys, probes, metrics, and a role killed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.support.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration

KEYS = "keys.toml"


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    """A terminal beside a cluster with keys, and 1 024 file descriptors a process as Linux has by default."""
    terminal = Terminal(tmp_path_factory.mktemp("sre"))
    terminal.types(f"eddyline key new cluster --scopes role --keys-file {KEYS} --secret-file cluster.key")
    terminal.types(f"eddyline key new ops --scopes read,write,delete,admin --keys-file {KEYS} --secret-file ops.key")
    secured = "env EDDYLINE_COMMON_KEYS_FILE=keys.toml EDDYLINE_COMMON_KEY_FILE=cluster.key"
    limited = f"bash -c 'ulimit -S -n 1024; exec {secured} eddyline up --free-ports'"
    with terminal.runs(limited, until="eddyline status"):
        yield terminal


def part(shell: Terminal, name: str) -> dict[str, object]:
    found: dict[str, object] = json.loads((shell.folder / "eddyline-data" / "cluster.json").read_text())[name]
    return found


def test_callers_without_a_key_get_an_error_with_the_flag(shell: Terminal) -> None:
    assert shell.types("eddyline status", "key", code=1).count("Traceback") == 0
    shell.types("eddyline status --key-file ops.key", "store", "ingest", "delivery")
    assert len(shell.types("eddyline status -o json --key-file ops.key").splitlines()) >= 3


def test_probes_and_metrics_answer_to_curl(shell: Terminal) -> None:
    for role in ("store", "ingest", "delivery"):
        at = part(shell, role)["metrics"]
        shell.types(f"curl -sf http://{at}/ready")
        shell.types(f"curl -sfI http://{at}/ready", "200")
        shell.types(f"curl -sf http://{at}/metrics", f"eddyline_{role}_")


def test_killed_store_comes_back_with_all_that_was_acknowledged(shell: Terminal) -> None:
    shell.types("seq 1 1000 | eddyline append numbers --create log --key-file ops.key")
    pid = part(shell, "store")["pid"]
    shell.types(f"kill -9 {pid}")
    shell.types("for i in $(seq 600); do eddyline status --key-file ops.key > last && exit 0; sleep 0.2; done; exit 1")
    assert part(shell, "store")["pid"] != pid
    assert shell.types("eddyline read numbers -o json --key-file ops.key | wc -l").strip() == "1000"
