"""Jobs as programs: what they ask for, and by which status they end."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from eddyline.core.records.record import Record
from eddyline.spark.jobs import audit, export, fold_as_of, stats
from eddyline.spark.jobs.job import EXIT_OK, EXIT_USAGE, JobError, main
from tests.support.kubernetes.helm import CHART
from tests.support.spark.jobs import filled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from eddyline.spark.jobs.job import Job
    from tests.support.cluster.processes import KillableStore

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

JOBS: dict[str, tuple[str, Job, list[str]]] = {
    "export": (export.ABOUT, export.Export(), ["--out", "/nowhere/out"]),
    "fold_as_of": (fold_as_of.ABOUT, fold_as_of.FoldAsOf(), ["--out", "/nowhere/out"]),
    "audit": (audit.ABOUT, audit.Audit(), []),
    "stats": (stats.ABOUT, stats.Stats(), ["--out", "/nowhere/out"]),
}
STORE = ["--store", "127.0.0.1:1", "--topic", "routes"]


@pytest.mark.parametrize("name", JOBS)
def test_help_lists_every_option(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    about, job, options = JOBS[name]
    assert main(name, about, job, ["--help"]) == EXIT_OK
    said = capsys.readouterr().out
    for option in ("--store", "--topic", "--patience", *options[::2]):
        assert option in said
    assert f"python -m eddyline.spark.jobs.{name}" in said


@pytest.mark.parametrize("name", JOBS)
def test_a_command_line_that_is_wrong_is_reported_before_anything_starts(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    about, job, options = JOBS[name]
    for wrong in ([*STORE, *options, "--never"], ["--store", "nowhere", "--topic", "routes", *options], STORE[:2]):
        assert main(name, about, job, wrong) == EXIT_USAGE
    assert capsys.readouterr().out == ""


def test_jobs_of_the_chart_are_command_lines_that_they_take() -> None:
    values = yaml.safe_load((CHART / "ci/everything.yaml").read_text(encoding="utf-8"))
    shown = {job["args"][1].rpartition(".")[2]: job["args"][2:] for job in values["spark"]["jobs"]}
    assert set(shown) == {"export", "audit"}
    for name, arguments in shown.items():
        parser = argparse.ArgumentParser(prog=name)
        JOBS[name][1].add_arguments(parser)
        parser.parse_args(arguments)


@pytest.mark.parametrize("name", JOBS)
def test_the_environment_states_which_cluster_where_the_command_line_does_not(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    about, job, options = JOBS[name]
    monkeypatch.delenv("EDDYLINE_ADDRESS", raising=False)
    assert main(name, about, job, [*STORE[2:], *options]) == EXIT_USAGE
    assert "required: --store" in capsys.readouterr().err
    monkeypatch.setenv("EDDYLINE_ADDRESS", "127.0.0.1:1,of-the-environment")
    assert main(name, about, job, [*STORE[2:], *options]) == EXIT_USAGE
    assert "of-the-environment" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "flag", "value"),
    [
        *((name, "--patience", value) for name in JOBS for value in ("0", "-5", "3601", "x", "1.5")),
        *((name, "--partitions", value) for name in ("audit", "fold_as_of") for value in ("0", "-1", "4097")),
    ],
)
def test_a_number_out_of_its_bounds_is_reported_with_its_flag(
    name: str, flag: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    about, job, options = JOBS[name]
    assert main(name, about, job, [*STORE, *options, flag, value]) == EXIT_USAGE
    said = capsys.readouterr()
    assert f"argument {flag}: {value!r} is not a whole number from 1 to" in said.err
    assert said.out == ""


@pytest.mark.parametrize(
    ("name", "wrong", "said"),
    [
        ("fold_as_of", ["--as-of-time", "yesterday"], "--as-of-time: 'yesterday' is neither ISO 8601"),
        ("fold_as_of", ["--as-of-seq", "-1"], "--as-of-seq: '-1' is not a whole number"),
        (
            "fold_as_of",
            ["--as-of-seq", "5", "--topic", "a,b"],
            "--as-of-seq: it is for one topic; for several give --as-of-time",
        ),
        ("export", ["--records-per-file", "0"], "--records-per-file: '0' is not a whole number"),
        ("export", ["--bytes-per-file", "-1"], "--bytes-per-file: '-1' is not a whole number"),
        *((name, ["--topic", "a,b*"], "--topic: give one prefix") for name in JOBS),
        *((name, ["--key-file", "/nowhere/key"], "--key-file: ") for name in JOBS),
    ],
)
def test_a_value_that_the_data_source_refuses_is_reported_with_its_flag(
    spark: SparkSession, name: str, wrong: list[str], said: str
) -> None:
    _, job, options = JOBS[name]
    parser = argparse.ArgumentParser()
    parser.add_argument("--store")
    job.add_arguments(parser)
    parsed = parser.parse_args([*STORE, *options, *wrong])
    parsed.store = ("127.0.0.1:1",)
    with pytest.raises(JobError) as caught:
        job.run(spark, parsed)
    assert caught.value.usage
    assert caught.value.message.startswith(said)


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
