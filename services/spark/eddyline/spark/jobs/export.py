"""The job `export`: what topics hold, to Parquet, a run at a time: each goes on where the last one ended.

    python -m eddyline.spark.jobs.export --store 127.0.0.1:7701 --topic 'routes.*' --out /data/lake

    out/topic=<t>/day=<YYYY-MM-DD>/part-….parquet       day of commit, UTC; names and manifests: `eddyline.export.manifest`

Plans, manifests, bookmarks and what they promise are those of `eddyline.export.run`, which the command `eddyline export`
uses too; here Spark's tasks write the splits of a plan. A task that is tried again, or twice at a time, changes nothing.
Failure: one topic's failure ends that topic; others go on. The result names it, and the exit code is 1.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.errors import PySparkException

from eddyline.export.out_dir import OutDir
from eddyline.export.run import RECORDS_PER_ROUND, ExportRun, ExportSizes, TopicExport, WorkRefused, summary
from eddyline.export.split.calls import Cluster
from eddyline.spark.jobs.arguments import add_out, add_topics, read_options
from eddyline.spark.jobs.export_work import ExportWork
from eddyline.spark.jobs.job import SPARK_ERROR_CHARS_MAX, JobError, Teller, main, tell
from eddyline.spark.jobs.tasks import run_waves, tasks_line
from eddyline.spark.reader.plan import find_topics, partitions_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import SparkSession

    from eddyline.export.manifest import Plan
    from eddyline.export.run import Line
    from eddyline.spark.jobs.job import Result
    from eddyline.spark.options.read import ReadOptions

ABOUT: Final = (__doc__ or "").replace("`", "")


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """An export: stores, topics, file sizes (`records_per_partition`, `bytes_per_partition`) and `on_gap` are those of
    `read`; `out` is an absolute path or a URI."""

    read: ReadOptions
    out: str
    records_per_round: int = RECORDS_PER_ROUND


def export(spark: SparkSession, options: ExportOptions, tell: Callable[[str], None]) -> list[TopicExport]:
    """Export each topic up to its head as it was at the start; `tell` receives progress.

    Raises:
        EddylineError: as `find_topics`: there is nothing to begin with.
    """
    read = options.read

    def write_splits(plan: Plan) -> Iterator[Sequence[Line]]:
        with Cluster.of(read) as cluster:
            partitions = partitions_of(plan.pieces(), cluster, read)
        work = ExportWork(read.stores, read.patience_s, options.out, read.on_gap, read.access)
        try:
            yield from run_waves(spark, partitions, work)
        except PySparkException as error:
            raise WorkRefused(type(error).__name__, str(error)[:SPARK_ERROR_CHARS_MAX]) from error

    with Cluster.of(read) as cluster:
        topics = find_topics(cluster, read)
    run = ExportRun(
        OutDir(options.out),
        open_cluster=lambda: Cluster.of(read),
        write_splits=write_splits,
        on_gap=read.on_gap,
        sizes=ExportSizes(read.records_per_partition, read.bytes_per_partition, options.records_per_round),
        tell=tell,
    )
    done = []
    for topic in topics:
        done.append(run.topic(topic))
        if done[-1].error:
            tell(f"{topic.name}: {done[-1].error}: {done[-1].message}")
    return done


class Export:
    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_topics(parser)
        add_out(parser)
        parser.add_argument(
            "--on-gap",
            choices=("fail", "warn", "rows"),
            default="fail",
            help="lost records end their topic, are listed in the manifest, or are rows of op GAP too (%(default)s)",
        )
        parser.add_argument("--records-per-file", type=int, help="most of a file (1 000 000)")
        parser.add_argument("--bytes-per-file", type=int, help="most of what a file is made from (256 MiB)")
        parser.add_argument(
            "--records-per-round",
            type=int,
            default=RECORDS_PER_ROUND,
            help="most of a plan and a manifest: what a run that dies has done for good (%(default)s)",
        )

    def run(self, spark: SparkSession, arguments: argparse.Namespace) -> Result:
        if arguments.records_per_round < 1:
            raise JobError("--records-per-round: at least 1", usage=True)
        chosen = read_options(
            arguments,
            onGap=arguments.on_gap,
            maxRecordsPerPartition=arguments.records_per_file,
            maxBytesPerPartition=arguments.bytes_per_file,
        )
        with Teller(tasks_line(spark)):
            done = export(spark, ExportOptions(chosen, arguments.out, arguments.records_per_round), tell)
        result = summary(done, arguments.out)
        if result["failed"]:
            raise JobError(f"{result['failed']} of {len(done)} topics were not exported completely", result)
        return result


if __name__ == "__main__":
    sys.exit(main("export", ABOUT, Export()))
