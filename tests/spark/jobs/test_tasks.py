"""Work as tasks: each partition is answered once, repeated errors are reported, and progress is visible."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from eddyline.core.errors import EpochMismatch
from eddyline.export.run import WorkRefused
from eddyline.export.split.channels import NO_ACCESS
from eddyline.export.split.pieces import TopicSplit
from eddyline.spark.jobs import tasks
from eddyline.spark.jobs.tasks import run_waves, tasks_line
from eddyline.spark.reader.plan import ReadPartition
from tests.support.spark.jobs import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from eddyline.core.auth.caller_channel import CallerAccess
    from eddyline.export.run import Line
    from eddyline.export.split.calls import Cluster

pytestmark = pytest.mark.spark


@dataclass(frozen=True, slots=True)
class Numbering:
    """Says what it was given; refuses one number, and fails one at the first attempt."""

    folder: str
    refused: int = -1
    stores: tuple[str, ...] = ()
    patience_s: int = 1
    access: CallerAccess = NO_ACCESS

    def lines(self, cluster: Cluster, partition: ReadPartition, number: int) -> Iterator[Line]:
        from pathlib import Path

        once = Path(self.folder) / "failed-once"
        if number == 3 and not once.exists():
            once.touch()
            raise RuntimeError("an attempt that dies")
        for piece in partition.pieces:
            yield {"number": number, "first": piece.first}
        if number == self.refused:
            raise EpochMismatch("another one", epoch=7)


def partitions(count: int) -> list[ReadPartition]:
    return [
        ReadPartition((TopicSplit("t", 1, 2 * n, 2 * n), TopicSplit("t", 1, 2 * n + 1, 2 * n + 1)), ("x:1",))
        for n in range(count)
    ]


def test_each_partition_is_answered_once_over_waves_and_attempts(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "WAVE_TASKS", 3)
    waves = list(run_waves(spark, partitions(7), Numbering(str(tmp_path))))
    assert [len(wave) for wave in waves] == [6, 6, 2]
    assert [(line["number"], line["first"]) for wave in waves for line in wave] == [(n // 2, n) for n in range(14)]


def test_lasting_error_is_reported_at_once(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(WorkRefused, match="another one") as refused:
        list(run_waves(spark, partitions(2), Numbering(str(tmp_path), refused=1)))
    assert refused.value.reason == "EPOCH_MISMATCH"


def test_progress_is_reported_while_tasks_run(spark: SparkSession, tmp_path: Path) -> None:
    seen = tmp_path / "seen"

    def held(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        wait_until(seen.exists)
        yield from batches

    line = tasks_line(spark)
    running = threading.Thread(target=spark.range(0, 4, 1, 4).mapInArrow(held, "id bigint").collect)
    running.start()
    wait_until(lambda: line() == "0 of 4 tasks done")
    seen.touch()
    running.join()
    wait_until(lambda: line() == "")
