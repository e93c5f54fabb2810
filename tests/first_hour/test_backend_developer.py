"""The first hour of a backend developer: a topic, records in and out by command and by Python, and first mistakes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.terminal import Terminal

pytestmark = pytest.mark.integration


def test_record_goes_in_and_comes_out(shell: Terminal) -> None:
    shell.types("eddyline topic create orders --kind kv")
    shell.types('eddyline append orders --key 17 \'{"state": "paid"}\'')
    shell.types("eddyline get orders 17", "paid")
    assert shell.types("eddyline get orders 17 --raw") == '{"state": "paid"}'
    (line,) = shell.types("eddyline read orders -o json --limit 1").splitlines()
    assert json.loads(line)["key"] == "17"
    shell.types("eddyline history orders 17", "paid")
    shell.types("eddyline status", "store", "ingest", "delivery")


def test_binary_file_comes_back_byte_for_byte(shell: Terminal) -> None:
    shell.types("head -c 100000 /dev/urandom > logo.bin")
    shell.types("eddyline append orders --key logo --file logo.bin")
    shell.types("eddyline get orders logo --raw > copy.bin && cmp logo.bin copy.bin")


def test_first_mistakes_are_one_line_that_gives_advice(shell: Terminal) -> None:
    for line, code, word in (
        ("eddyline read ordres", 1, "TOPIC_NOT_FOUND"),
        ("eddyline get orders nothing", 1, "KEY_NOT_FOUND"),
        ("eddyline append orders value", 1, "KEY_REQUIRED"),
        ("eddyline topic create orders --kind kv", 1, "TOPIC_EXISTS"),
    ):
        shown = shell.types(line, word, code=code)
        assert shown.count("\n") <= 1, shown
        assert "Traceback" not in shown


def test_reader_that_goes_away_early_is_no_error(shell: Terminal) -> None:
    shell.types("seq 1 5000 | eddyline append numbers --create log > /dev/null")
    assert shell.types("set -o pipefail; eddyline read numbers -o json | head -n 1").count("\n") == 1
    assert shell.types("eddyline read numbers -o json | wc -l").strip() == "5000"
