"""Jobs that are stopped by a signal in the middle of a query: their exit code says so, and no traceback comes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from eddyline.core.model.topic import Kind
from eddyline.core.records.record import Op, Record
from eddyline.spark.jobs.spark_calls import ROWS_PER_TASK, TASKS_MAX, on_disk, tasks_for
from tests.support.spark.jobs import filled, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.cluster.processes import KillableStore

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

MANY = 300_000


def started(job: str, *arguments: str, errors: Path) -> subprocess.Popen[str]:
    """The job as a program in a process group of its own, as a shell starts one."""
    with errors.open("w") as file:
        return subprocess.Popen(
            [sys.executable, "-m", f"eddyline.spark.jobs.{job}", *arguments],
            env=os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
            start_new_session=True,
        )


def test_sigterm_while_folds_are_compared_ends_an_audit_as_stopped(
    killable_store: KillableStore, tmp_path: Path
) -> None:
    records = [Record(op=Op.PUT, key=b"%d" % number, data=b".") for number in range(MANY)]
    topic = filled(killable_store, "routes", records, batch=10_000, kind=Kind.KV)
    errors = tmp_path / "errors"
    with started("audit", "--store", topic.address, "--topic", "routes", errors=errors) as running:
        wait_until(lambda: "comparing the fold" in errors.read_text())
        running.send_signal(signal.SIGTERM)
        said, _ = running.communicate()
    told = errors.read_text()
    assert (running.returncode, said) == (128 + signal.SIGTERM, "")
    assert "Traceback" not in told
    assert told.splitlines()[-1] == "audit: stopped; run it again to continue"


def test_ctrl_c_ends_stats_without_a_traceback_of_any_process(killable_store: KillableStore, tmp_path: Path) -> None:
    records = [Record(key=b"%d" % number, data=b".") for number in range(MANY)]
    topic = filled(killable_store, "lines", records, batch=10_000)
    errors, out = tmp_path / "errors", str(tmp_path / "out")
    arguments = ("--store", topic.address, "--topic", "lines", "--out", out)
    with started("stats", *arguments, errors=errors) as running:
        wait_until(lambda: "tasks done" in errors.read_text() or running.poll() is not None)
        os.killpg(running.pid, signal.SIGINT)
        said, _ = running.communicate()
    told = errors.read_text()
    assert (running.returncode, said) == (128 + signal.SIGINT, "")
    assert "Traceback" not in told
    # Ctrl-C reaches the workers too: on a busy machine the JVM's line about one that went may come behind ours.
    assert told.splitlines().count("stats: stopped; run it again to continue") == 1


def test_a_job_that_fails_gives_the_reason_in_its_last_line(killable_store: KillableStore, tmp_path: Path) -> None:
    killable_store.start()
    arguments = ("--store", killable_store.address, "--topic", "nope", "--out", str(tmp_path / "out"))
    with started("export", *arguments, errors=tmp_path / "errors") as running:
        said, _ = running.communicate()
    told = json.loads(said.splitlines()[-1])
    assert (running.returncode, told["failed"], told["error"]) == (1, 1, "TOPIC_NOT_FOUND")
    assert "option topic" in told["message"]


def test_a_kept_frame_is_given_back_and_its_failure_hides_nothing(spark: SparkSession) -> None:
    frame = spark.range(10)
    with pytest.raises(KeyError, match="the cause"), on_disk(frame, rows=10) as held:
        assert held.count() == 10
        assert held.storageLevel.useDisk
        raise KeyError("the cause")
    assert not frame.storageLevel.useDisk


def test_what_is_kept_is_shuffled_by_tasks_for_its_rows_alone(spark: SparkSession) -> None:
    before = spark.conf.get("spark.sql.shuffle.partitions")
    frame = spark.range(451).join(spark.range(451), "id", "full_outer")
    with on_disk(frame, rows=3 * ROWS_PER_TASK) as held:
        assert held.rdd.getNumPartitions() == 3
        assert held.count() == 451
    assert spark.conf.get("spark.sql.shuffle.partitions") == before


def test_a_shuffle_has_tasks_for_its_rows() -> None:
    assert [tasks_for(rows) for rows in (0, 451, ROWS_PER_TASK, ROWS_PER_TASK + 1)] == [1, 1, 1, 2]
    assert tasks_for(1 << 40) == TASKS_MAX
