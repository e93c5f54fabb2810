"""The job `audit`: is what a store serves what its log says? Of each topic:

    python -m eddyline.spark.jobs.audit --store 127.0.0.1:7701 --topic 'routes.*'

    log    every split is read: seqs and commit times in order, and rows + gaps + deleted make up the range
    twice  no key has the same version of the same source time twice (topics whose records bring versions)
    fold   of KV topics: the store's entries against those that base and log give (`fold_compare.py`)

I1: `pass` means that the whole topic was checked: a topic that could not be read is neither pass nor finding.
Lost records that the log reports as gaps are counted, and are a finding only if `on_gap` is `fail`.
It changes nothing, and costs the store a scan of the log, two for KV topics.
Exit codes: 0 pass, 1 findings, 2 a topic could not be checked.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from eddyline.core.errors import EddylineError
from eddyline.export.run import WorkRefused, count_in
from eddyline.export.split.calls import Cluster
from eddyline.spark.jobs.arguments import add_partitions, add_topics, read_options
from eddyline.spark.jobs.fold_compare import FINDINGS_MAX, compare_fold
from eddyline.spark.jobs.job import SPARK_ERROR_CHARS_MAX, JobError, Teller, main, tell
from eddyline.spark.jobs.log_check import LogCheck
from eddyline.spark.jobs.tasks import run_waves, tasks_line
from eddyline.spark.read import read
from eddyline.spark.reader.plan import Cut, find_topics, partitions_of, plan_log
from eddyline.v1 import topic_pb2

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from eddyline.export.run import Line
    from eddyline.spark.jobs.job import Result
    from eddyline.spark.options.read import ReadOptions


ABOUT: Final = (__doc__ or "").replace("`", "")


@dataclass(slots=True)
class TopicAudit:
    """The findings of one topic. `findings` are lines for people, at most some hundred; `finding_count` counts all."""

    topic: str
    epoch: int
    first_seq: int
    end_seq: int
    rows: int = 0
    gaps: int = 0
    deleted: int = 0
    gap_count: int = 0
    lost: list[object] = field(default_factory=list)
    repeated: int = 0
    fold_seq: int | None = None
    entries: int = 0
    differing: int = 0
    finding_count: int = 0
    findings: list[str] = field(default_factory=list)
    error: str = ""
    message: str = ""

    def find(self, finding: str) -> None:
        """Note a finding."""
        self.finding_count += 1
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(finding)


def audit(
    spark: SparkSession, options: ReadOptions, tell: Callable[[str], None], *, partitions: int | None = None
) -> list[TopicAudit]:
    """Audit each topic, up to its head as it is now; folds are read by so many tasks (None = as memory needs).

    Raises:
        EddylineError: as `find_topics`.
    """
    with Cluster.of(options) as cluster:
        topics = find_topics(cluster, options)
    return [_one_topic(spark, options, topic, tell, partitions) for topic in topics]


def _one_topic(
    spark: SparkSession,
    options: ReadOptions,
    topic: topic_pb2.Topic,
    tell: Callable[[str], None],
    partitions: int | None,
) -> TopicAudit:
    done = TopicAudit(topic.name, topic.epoch, topic.earliest_seq, topic.head_seq + 1)
    try:
        versions = _check_log(spark, options, done, tell)
        if versions:
            _check_repeats(spark, options, done)
        if topic.kind == topic_pb2.TOPIC_KIND_KV:
            tell(f"{topic.name}: comparing the fold")
            _check_fold(spark, options, done, partitions)
    except EddylineError as error:
        done.error, done.message = error.reason, error.message
    except WorkRefused as error:
        done.error, done.message = error.reason, str(error)
    except PySparkException as error:
        done.error, done.message = type(error).__name__, str(error)[:SPARK_ERROR_CHARS_MAX]
    for finding in done.findings:
        tell(f"{topic.name}: FOUND: {finding}")
    verdict = f"{done.error}: {done.message}" if done.error else f"{done.finding_count} findings"
    tell(f"{topic.name}: {verdict}; {done.rows:,} records, {done.entries:,} entries")
    return done


def _check_log(spark: SparkSession, options: ReadOptions, done: TopicAudit, tell: Callable[[str], None]) -> int:
    """Read all of the log; how many records bring versions."""
    with Cluster.of(options) as cluster:
        pieces = plan_log(cluster, Cut(done.topic, done.epoch, done.first_seq, done.end_seq), options)
        partitions = partitions_of(pieces, cluster, options)
    lines: list[Line] = []
    for wave in run_waves(spark, partitions, LogCheck(options.stores, options.patience_s, options.access)):
        lines += wave
        tell(f"{done.topic}: {len(lines)} of {len(pieces)} splits of the log read")
    for line in lines:
        if "finding" in line:
            done.find(str(line["finding"]))
    whole = [line for line in lines if "finding" not in line]
    done.rows, done.gaps, done.deleted, done.gap_count = (
        sum(count_in(line, name) for line in whole) for name in ("rows", "gaps", "deleted", "gap_count")
    )
    for line in whole:
        lost = line["lost"]
        assert isinstance(lost, list)
        done.lost += lost[: FINDINGS_MAX - len(done.lost)]
    if len(whole) == len(pieces) and done.rows + done.gaps + done.deleted != done.end_seq - done.first_seq:
        done.find(f"{done.rows} rows, {done.gaps} lost and {done.deleted} deleted do not add up to its range")
    for one, next_one in pairwise(line for line in whole if line["rows"]):
        if count_in(one, "last_ts") > count_in(next_one, "first_ts"):
            done.find(f"commit times go back between seq {one['last']} and {next_one['first']}")
    if done.gaps and options.on_gap == "fail":
        done.find(f"{done.gaps} records are lost, in {done.gap_count} gaps")
    return sum(count_in(line, "versions") for line in whole)


def _check_repeats(spark: SparkSession, options: ReadOptions, done: TopicAudit) -> None:
    """Records that a source brought twice: of one key, one version and one source time."""
    records = read(
        spark,
        options.stores,
        topic=done.topic,
        starting_seq=done.first_seq,
        ending_seq=done.end_seq,
        columns=["seq", "op", "key", "version", "source_ts_ns"],
        on_gap="warn",
        patience_s=options.patience_s,
        access=options.asked,
    )
    repeated = repeats(records)
    rows = repeated.orderBy("first").limit(FINDINGS_MAX + 1).collect()
    done.repeated = len(rows)
    for row in rows:
        done.find(
            f"key {bytes(row['key'] or b'')!r}: the same version {row['times']} times, seq {row['first']} to {row['last']}"
        )


def repeats(records: DataFrame) -> DataFrame:
    """Keys with one version of one source time more than once: times, first and last seq."""
    # A version that nobody gave is the seq's 8 bytes, which no two records share.
    return (
        records.where("source_ts_ns IS NOT NULL")
        .groupBy("key", "version", "source_ts_ns")
        .agg(F.count("*").alias("times"), F.min("seq").alias("first"), F.max("seq").alias("last"))
        .where("times > 1")
    )


def _check_fold(spark: SparkSession, options: ReadOptions, done: TopicAudit, partitions: int | None) -> None:
    compared = compare_fold(spark, options, done.topic, done.epoch, partitions)
    done.fold_seq, done.entries, done.differing = compared.fold_seq, compared.entries, compared.differing
    for line in compared.findings.values():
        done.find(line)
    done.finding_count += max(0, compared.differing - len(compared.findings))


def summary(done: list[TopicAudit]) -> Result:
    """The job's result."""
    findings = sum(topic.finding_count for topic in done)
    failed = sum(1 for topic in done if topic.error)
    verdict = "incomplete" if failed else "findings" if findings else "pass"
    return {
        "verdict": verdict,
        "findings": findings,
        "failed": failed,
        "topics": [asdict(topic) for topic in done],
    }


class Audit:
    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_topics(parser)
        parser.add_argument(
            "--on-gap", choices=("fail", "warn"), default="warn", help="are lost records a finding (%(default)s: no)"
        )
        add_partitions(parser, "tasks that share the keys of a fold")

    def run(self, spark: SparkSession, arguments: argparse.Namespace) -> Result:
        try:
            chosen = read_options(arguments, onGap=arguments.on_gap)
            with Teller(tasks_line(spark)):
                done = audit(spark, chosen, tell, partitions=arguments.partitions)
        except EddylineError as error:
            raise JobError(
                f"nothing was audited: {error.reason}: {error.message}", usage=True, reason=error.reason
            ) from error
        result = summary(done)
        if result["verdict"] != "pass":
            incomplete = result["verdict"] == "incomplete"
            raise JobError(f"{result['findings']} findings, {result['failed']} topics failed", result, usage=incomplete)
        return result


if __name__ == "__main__":
    sys.exit(main("audit", ABOUT, Audit()))
