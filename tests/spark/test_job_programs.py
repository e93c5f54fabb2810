"""Jobs as programs: what they ask for, and by which status they end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from eddyline.core.record import Record
from eddyline.spark.jobs import audit, export, fold_as_of, stats
from eddyline.spark.jobs.frame import EXIT_OK, EXIT_USAGE, main
from tests.support.spark_jobs import filled

if TYPE_CHECKING:
    from eddyline.spark.jobs.frame import Job
    from tests.support.spark_target import KillableStore

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

JOBS: dict[str, tuple[str, Job, list[str]]] = {
    "export": (export.ABOUT, export.Export(), ["--out", "/nowhere/out"]),
    "fold_as_of": (fold_as_of.ABOUT, fold_as_of.FoldAsOf(), ["--out", "/nowhere/out"]),
    "audit": (audit.ABOUT, audit.Audit(), []),
    "stats": (stats.ABOUT, stats.Stats(), ["--out", "/nowhere/out"]),
}
STORE = ["--store", "127.0.0.1:1", "--topic", "routes"]


@pytest.mark.parametrize("name", JOBS)
def test_help_tells_every_option(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    about, job, options = JOBS[name]
    assert main(name, about, job, ["--help"]) == EXIT_OK
    said = capsys.readouterr().out
    for option in ("--store", "--topic", "--patience", *options[::2]):
        assert option in said
    assert f"python -m eddyline.spark.jobs.{name}" in said


@pytest.mark.parametrize("name", JOBS)
def test_a_command_line_that_is_wrong_is_told_before_anything_starts(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    about, job, options = JOBS[name]
    for wrong in ([*STORE, *options, "--never"], ["--store", "nowhere", "--topic", "routes", *options], STORE[:2]):
        assert main(name, about, job, wrong) == EXIT_USAGE
    assert capsys.readouterr().out == ""


def test_a_job_runs_by_spark_submit_and_its_last_line_is_its_result(
    killable_store: KillableStore, tmp_path: Path
) -> None:
    topic = filled(killable_store, "lines", [Record(data=b"%d" % number) for number in range(100)], batch=50)
    submit = [str(Path(sys.executable).with_name("spark-submit")), "--master", "local[2]", str(audit.__file__)]

    passed = subprocess.run(
        [*submit, "--store", topic.address, "--topic", "lines"],
        env=os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    told = json.loads(passed.stdout.splitlines()[-1])
    assert (passed.returncode, told["verdict"], told["topics"][0]["rows"]) == (0, "pass", 100)
