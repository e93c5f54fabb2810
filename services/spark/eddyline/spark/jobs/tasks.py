"""Work on partitions of a plan as Spark tasks: JSON lines out, in waves.

Runs by `mapInArrow` over a range of numbers with as many partitions, which classic sessions and Connect both have, and which
shuffles nothing. A wave is bounded, so that the driver holds little, and tells how far the work is.
I1: a partition's lines come from one whole attempt at it. Work must be safe to repeat: Spark tries a task again, and may try
it twice at a time.
Failure: an `EddylineError` that another try meets again is an answer (`error`); anything else fails the task, which Spark
tries again, and then the job.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, Protocol

import pyarrow as pa
from pyspark.errors import PySparkAttributeError

from eddyline.core.errors import Code, EddylineError
from eddyline.export.run import WorkRefused
from eddyline.export.split.calls import Cluster, Reached
from eddyline.export.split.channels import REFUSED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import SparkSession

    from eddyline.export.run import Line
    from eddyline.spark.reader.plan import ReadPartition

WAVE_TASKS: Final = 128
"""Between two waves cores wait for the last task of the first: some 1 % of the time at 128 tasks and few cores."""
_FINAL: Final = (
    Code.NOT_FOUND,
    Code.ABORTED,
    Code.OUT_OF_RANGE,
    Code.FAILED_PRECONDITION,
    Code.INVALID_ARGUMENT,
    Code.DATA_LOSS,
    *REFUSED,
)
"""Another try gives the same."""


class Work(Reached, Protocol):
    """The work for one partition. It travels with the task."""

    def lines(self, cluster: Cluster, partition: ReadPartition, number: int) -> Iterator[Line]:
        """Do it, and yield what there is to say, as JSON takes it. `number` is the partition's among all.

        Raises:
            WorkRefused, EddylineError: it cannot be done.
        """
        ...


def run_waves(spark: SparkSession, partitions: Sequence[ReadPartition], work: Work) -> Iterator[list[Line]]:
    """Do the work, and yield the lines of each wave, in the order of partitions.

    Raises:
        WorkRefused: a task met such an error.
    """
    for start in range(0, len(partitions), WAVE_TASKS):
        lines = _wave(spark, start, tuple(partitions[start : start + WAVE_TASKS]), work)
        for line in lines:
            if "error" in line:
                raise WorkRefused(str(line["error"]), str(line["message"]))
        yield lines


def tasks_line(spark: SparkSession) -> Callable[[], str]:
    """A line on how many tasks of what runs now are done, for `Teller`; "" where nothing runs, and always on Connect."""
    try:
        tracker = spark.sparkContext.statusTracker()
    except PySparkAttributeError:
        return lambda: ""

    def line() -> str:
        stages = [
            stage for number in tracker.getActiveStageIds() if (stage := tracker.getStageInfo(number)) is not None
        ]
        done, tasks = (sum(getattr(stage, name) for stage in stages) for name in ("numCompletedTasks", "numTasks"))
        return f"{done} of {tasks} tasks done" if tasks else ""

    return line


def _wave(spark: SparkSession, start: int, partitions: tuple[ReadPartition, ...], work: Work) -> list[Line]:
    def run(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                lines = [json.dumps(line) for line in _answers(partitions[number], start + number, work)]
                yield pa.RecordBatch.from_pydict(
                    {"number": pa.array([number] * len(lines), pa.int64()), "line": pa.array(lines, pa.string())}
                )

    count = len(partitions)
    rows = spark.range(0, count, 1, count).mapInArrow(run, "number bigint, line string").collect()
    if {row["number"] for row in rows} != set(range(count)):
        raise AssertionError("I1: a partition without an answer")
    return [json.loads(row["line"]) for row in sorted(rows, key=lambda row: int(row["number"]))]


def _answers(partition: ReadPartition, number: int, work: Work) -> list[Line]:
    with Cluster.of(work, stores=partition.stores) as cluster:
        try:
            return list(work.lines(cluster, partition, number))
        except WorkRefused as error:
            return [{"error": error.reason, "message": str(error)}]
        except EddylineError as error:
            if error.code not in _FINAL:
                raise
            return [{"error": error.reason, "message": error.message}]
