"""The job `fold-as-of`: each key's live value as of a seq or a time, to Parquet: time travel over all history there is.

    python -m eddyline.spark.jobs.fold_as_of --store 127.0.0.1:7701 --topic routes --as-of-seq 10000 --out /data/folds

    out/topic=<t>/as_of=<seq>/part-<n>.parquet      the entries, one of a key, in any order
    out/topic=<t>/as_of=<seq>/_manifest.json        how many, with each file's sum

I1: what is there is whole: files are made in a directory beside it, which takes the name at once when they are all there.
(An object store has no such call: there each file takes its name, and the manifest is the last.)
I2: a point is made once: the same entries for ever, so a run that finds it does nothing; one that died leaves nothing under
the name, and the next run begins anew.
Records deleted on request after the point are not in it, as in every read of the past.
"""

from __future__ import annotations

import json
import sys
import uuid
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from pyspark.errors import PySparkException

from eddyline.core.errors import EddylineError
from eddyline.export.manifest import FORMAT, STATE, topic_dir
from eddyline.export.out_dir import OutDir
from eddyline.export.run import WorkRefused, count_in
from eddyline.export.split.calls import Cluster
from eddyline.spark.jobs.arguments import add_out, add_partitions, add_topics, read_options
from eddyline.spark.jobs.fold_work import FoldWork
from eddyline.spark.jobs.job import SPARK_ERROR_CHARS_MAX, JobError, Teller, main, tell
from eddyline.spark.jobs.tasks import run_waves, tasks_line
from eddyline.spark.reader.fold import plan_fold
from eddyline.spark.reader.plan import pin

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from eddyline.spark.jobs.job import Result
    from eddyline.spark.options.read import ReadOptions
    from eddyline.spark.reader.plan import Cut

MANIFEST: Final = "_manifest.json"
ABOUT: Final = (__doc__ or "").replace("`", "")


@dataclass(frozen=True, slots=True)
class FoldOptions:
    """Of which topics and which point is in `read` (`fold` or `asOf`); to `out`, an absolute path or a URI."""

    read: ReadOptions
    out: str


@dataclass(slots=True)
class TopicFold:
    """The outcome for one topic. `was_there` = an earlier run made this point."""

    topic: str
    epoch: int
    as_of_seq: int
    rows: int = 0
    bytes: int = 0
    files: int = 0
    path: str = ""
    was_there: bool = False
    error: str = ""
    message: str = ""


def fold_as_of(spark: SparkSession, options: FoldOptions, tell: Callable[[str], None]) -> list[TopicFold]:
    """Write the fold of each topic; what fails of one is in its result.

    Raises:
        EddylineError: as `pin`.
    """
    with Cluster.of(options.read) as cluster:
        cuts = pin(cluster, options.read)
    return [_one_topic(spark, options, cut, tell) for cut in cuts]


def _one_topic(spark: SparkSession, options: FoldOptions, cut: Cut, tell: Callable[[str], None]) -> TopicFold:
    point = cut.as_of_seq or 0
    done = TopicFold(cut.topic, cut.epoch, point)
    try:
        _write(spark, options, cut, done, tell)
    except EddylineError as error:
        done.error, done.message = error.reason, error.message
    except WorkRefused as error:
        done.error, done.message = error.reason, str(error)
    except (PySparkException, OSError) as error:
        done.error, done.message = type(error).__name__, str(error)[:SPARK_ERROR_CHARS_MAX]
    tell(
        f"{cut.topic} as of {point:,}: " + (f"{done.error}: {done.message}" if done.error else f"{done.rows:,} entries")
    )
    return done


def _write(spark: SparkSession, options: FoldOptions, cut: Cut, done: TopicFold, tell: Callable[[str], None]) -> None:
    read, out = options.read, OutDir(options.out)
    name = f"{topic_dir(cut.topic)}/as_of={done.as_of_seq}"
    done.path = f"{options.out}/{name}"
    if out.exists(f"{name}/{MANIFEST}"):
        _found(out, f"{name}/{MANIFEST}", done)
        return
    staging = f"{STATE}/{uuid.uuid4().hex}"
    try:
        with Cluster.of(read) as cluster:
            partitions = plan_fold(cluster, cut, read)
        lines = []
        work = FoldWork(read.stores, read.patience_s, options.out, staging, read.access)
        for wave in run_waves(spark, partitions, work):
            lines += wave
            tell(f"{cut.topic} as of {done.as_of_seq:,}: {len(lines)} of {len(partitions)} shares")
        done.rows = sum(count_in(line, "rows") for line in lines)
        done.bytes = sum(count_in(line, "bytes") for line in lines)
        done.files = len(lines)
        told = {
            "format": FORMAT,
            "topic": cut.topic,
            "epoch": cut.epoch,
            "as_of_seq": done.as_of_seq,
            "rows": done.rows,
        }
        out.write(f"{staging}/{MANIFEST}", (json.dumps({**told, "files": lines}, indent=1) + "\n").encode())
        try:
            out.publish(staging, name, last=MANIFEST)
        except FileExistsError:
            # Another run was first: its point is this one.
            _found(out, f"{name}/{MANIFEST}", done)
    finally:
        out.remove_all(staging)


def _found(out: OutDir, manifest: str, done: TopicFold) -> None:
    found = json.loads(out.read(manifest))
    if found["epoch"] != done.epoch:
        raise WorkRefused(
            "EPOCH_MISMATCH",
            f"{done.path} holds epoch {found['epoch']}, and topic {done.topic} was recreated as {done.epoch}:"
            " choose another directory",
        )
    done.rows, done.files, done.was_there = found["rows"], len(found["files"]), True
    done.bytes = sum(file["bytes"] for file in found["files"])


def summary(done: list[TopicFold], out: str) -> Result:
    """The job's result."""
    sums = {name: sum(getattr(topic, name) for topic in done) for name in ("rows", "files", "bytes")}
    failed = sum(1 for topic in done if topic.error)
    return {"out": out, "failed": failed, **sums, "topics": [asdict(topic) for topic in done]}


class FoldAsOf:
    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_topics(parser)
        add_out(parser)
        point = parser.add_mutually_exclusive_group()
        point.add_argument("--as-of-seq", type=int, help="after the record of this seq (one topic); else as it is now")
        point.add_argument(
            "--as-of-time", help="after the last record committed by then: ISO 8601 with its zone, or ms"
        )
        add_partitions(parser, "tasks that share the keys")

    def run(self, spark: SparkSession, arguments: argparse.Namespace) -> Result:
        is_now = arguments.as_of_seq is None and arguments.as_of_time is None
        chosen = read_options(
            arguments,
            read="fold" if is_now else "asOf",
            asOfSeq=arguments.as_of_seq,
            asOfTimestamp=arguments.as_of_time,
            asOfPartitions=arguments.partitions,
        )
        with Teller(tasks_line(spark)):
            done = fold_as_of(spark, FoldOptions(chosen, arguments.out), tell)
        result = summary(done, arguments.out)
        if result["failed"]:
            raise JobError(f"{result['failed']} of {len(done)} folds were not written", result)
        return result


if __name__ == "__main__":
    sys.exit(main("fold_as_of", ABOUT, FoldAsOf()))
