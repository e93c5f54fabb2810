"""A store's fold against the one that base and log give, in Spark: key by key, every part of an entry.

    the store's entries, at the point where its fold is (`store_entries.py`)
    base and log as of that very point (`read` = asOf)
    joined on the key: what only one has, or what differs in seq, version or the hash of all the rest

I1: both sides are of one point. A record that is deleted between the two readings is missing in the second, so what differs
is compared once more, and only keys that differ both times are findings.
Failure: a side that cannot be read (a store that restarts, a base that was replaced) is read again, a few times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from eddyline.export.split.calls import Cluster
from eddyline.spark.jobs.spark_calls import on_disk
from eddyline.spark.jobs.store_entries import FOLD_SEQ, kept, open_entries
from eddyline.spark.read import read

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from eddyline.spark.options.read import ReadOptions

FINDINGS_MAX: Final = 100
"""As VerifyFold."""
TRIES: Final = 3
_HASHED: Final = ("ts", "source_ts_ns", "op", "tag", "node", "meta", "data", "version")


@dataclass(frozen=True, slots=True)
class Compared:
    """The result of a comparison, at `fold_seq`. `findings` are by key, at most `FINDINGS_MAX`, a line for people each."""

    fold_seq: int
    entries: int
    differing: int
    findings: dict[bytes, str]


def compare_fold(
    spark: SparkSession, options: ReadOptions, topic: str, epoch: int, partitions: int | None = None
) -> Compared:
    """Compare a topic's fold.

    Raises:
        EddylineError, PySparkException: a side cannot be read.
    """
    first = _compare(spark, options, topic, epoch, partitions)
    if not first.differing:
        return first
    second = _compare(spark, options, topic, epoch, partitions)
    if max(first.differing, second.differing) > FINDINGS_MAX:
        return second
    both = {key: line for key, line in second.findings.items() if key in first.findings}
    return Compared(second.fold_seq, second.entries, len(both), both)


def _compare(spark: SparkSession, options: ReadOptions, topic: str, epoch: int, partitions: int | None) -> Compared:
    for _ in range(TRIES - 1):
        try:
            return _compare_once(spark, options, topic, epoch, partitions)
        except PySparkException:
            continue
    return _compare_once(spark, options, topic, epoch, partitions)


def _compare_once(
    spark: SparkSession, options: ReadOptions, topic: str, epoch: int, partitions: int | None
) -> Compared:
    with Cluster.of(options) as cluster:
        source = open_entries(cluster, topic, epoch)
    held = kept(_side(source.frame(spark), "found", FOLD_SEQ))
    (marker,) = held.where("key IS NULL").select(FOLD_SEQ).collect()
    fold_seq = int(marker[FOLD_SEQ])
    found = held.where("key IS NOT NULL")
    entries = found.count()
    expected = _side(
        read(
            spark,
            options.stores,
            topic=topic,
            kind="asOf",
            as_of_seq=fold_seq,
            as_of_partitions=partitions,
            patience_s=options.patience_s,
            access=options.asked,
        ),
        "expected",
    )
    joined = found.join(expected, "key", "full_outer")
    is_equal = F.lit(True)
    for part in ("seq", "version", "hash"):
        is_equal = is_equal & F.col(f"found_{part}").eqNullSafe(F.col(f"expected_{part}"))
    unequal = joined.where(~is_equal).select("key", "found_seq", "expected_seq")
    with on_disk(unequal, rows=entries) as differing:
        lines = {bytes(row["key"]): _line(*row) for row in differing.orderBy("key").limit(FINDINGS_MAX).collect()}
        return Compared(fold_seq, entries, differing.count(), lines)


def _side(rows: DataFrame, name: str, *more: str) -> DataFrame:
    """Key, and what is compared, under names of this side."""
    # A null is passed over by the hash: it would be as an empty value.
    hashed: list[Column] = [part for column in _HASHED for part in (F.col(column).isNull(), F.col(column))]
    return rows.select(
        "key",
        F.col("seq").alias(f"{name}_seq"),
        F.col("version").alias(f"{name}_version"),
        F.xxhash64(*hashed).alias(f"{name}_hash"),
        *more,
    )


def _line(key: bytes, found_seq: int | None, expected_seq: int | None) -> str:
    shown = repr(bytes(key))[1:]
    if found_seq is None:
        return f"key {shown} is not in the fold; base and log have it at seq {expected_seq}"
    if expected_seq is None:
        return f"key {shown} is in the fold at seq {found_seq}; base and log do not have it"
    if found_seq == expected_seq:
        return f"key {shown} differs in its value, at seq {found_seq}"
    return f"key {shown} is at seq {found_seq} in the fold, but at {expected_seq} in base and log"
