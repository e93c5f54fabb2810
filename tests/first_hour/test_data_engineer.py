"""The first hour of a data engineer: a topic as Parquet files, read by duckdb, polars and pyarrow, and what came since."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.terminal import Terminal

pytestmark = pytest.mark.integration

COUNT = """
import duckdb, polars, pyarrow.dataset
files = "lake/topic=visits/day=*/*.parquet"
print(duckdb.sql(f"SELECT count(*) FROM read_parquet('{files}', hive_partitioning = true)").fetchall()[0][0])
print(polars.read_parquet(files).height)
print(pyarrow.dataset.dataset("lake/topic=visits", format="parquet", partitioning="hive").count_rows())
"""


def test_topic_becomes_parquet_files_that_others_read(shell: Terminal) -> None:
    shell.types("seq 1 2000 | eddyline append visits --create log")
    shell.types("eddyline export visits --out lake", "2000 records")
    shell.types("seq 1 50 | eddyline append visits")
    (line,) = shell.types("eddyline export visits --out lake -o json 2> progress.log").splitlines()
    assert {name: json.loads(line)[name] for name in ("first_seq", "end_seq", "rows")} == {
        "first_seq": 2001,
        "end_seq": 2051,
        "rows": 50,
    }
    shell.writes("count.py", COUNT)
    assert shell.types("python count.py").split() == ["2050"] * 3
    shell.types("ls lake/_eddyline/visits | grep -c manifest.json", "2")


def test_wrong_targets_and_topics_are_one_line(shell: Terminal) -> None:
    shell.types("mkdir other && touch other/notes")
    for line, reason in (
        ("eddyline export visits --out other", "TARGET_NOT_EMPTY"),
        ("eddyline export ordres --out new", "TOPIC_NOT_FOUND"),
    ):
        assert shell.types(line, reason, code=1).count("\n") == 1
    shell.types("ls new", code=2)
    shell.types("eddyline export --help", "example", "--on-gap")


def test_lines_go_from_one_topic_to_another(shell: Terminal) -> None:
    shell.types("eddyline read visits -o json | eddyline append copied --json --create log")
    assert shell.types("eddyline read copied -o json | wc -l").strip() == "2050"
