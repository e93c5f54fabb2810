"""The job `stats`: what topics hold, as tables that a dashboard reads, and a summary.

    python -m eddyline.spark.jobs.stats --store 127.0.0.1:7701 --topic 'routes.*' --out /data/stats

    hours.parquet   topic, hour (UTC, of commit), op: records, data_bytes
    sizes.parquet   topic, data_bytes_below (a power of two): records, data_bytes
    keys.parquet    topic, the n keys with most records: records, data_bytes, last_seq
    tags.parquet    topic, the n tags with most records: likewise
    gaps.parquet    topic, each range that is lost: first_seq, last_seq, reason

I1: all tables are of one cut of each topic: its head when the job began; gaps from seq 1 on, what retention took among
them. I2: each file is replaced whole.
The log is read once, for all tables but gaps.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow.parquet as pq
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from eddyline.export.out_dir import OutDir
from eddyline.export.split.calls import Cluster
from eddyline.spark.jobs.arguments import add_out, add_topics, read_options
from eddyline.spark.jobs.job import JobError, Teller, main, tell
from eddyline.spark.jobs.spark_calls import on_disk
from eddyline.spark.jobs.tasks import tasks_line
from eddyline.spark.read import read
from eddyline.spark.reader.plan import find_topics

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

    from eddyline.spark.jobs.job import Result
    from eddyline.spark.options.read import ReadOptions

TOP: Final = 20
TOP_MAX: Final = 10_000
GAPS_MAX: Final = 100_000
"""Rows of the table of gaps; the summary counts all that it has."""
SHOWN: Final = 5
"""Hot keys and tags of a topic that the summary names."""
TABLES: Final = ("hours", "sizes", "keys", "tags", "gaps")
ABOUT: Final = (__doc__ or "").replace("`", "")
_DIMENSIONS: Final = ("topic", "hour", "op", "key", "tag", "size_class")
_SETS: Final = {
    "hours": ("topic", "hour", "op"),
    "sizes": ("topic", "size_class"),
    "keys": ("topic", "key"),
    "tags": ("topic", "tag"),
}


@dataclass(frozen=True, slots=True)
class StatsOptions:
    """Topics of `read`; tables to `out`, an absolute path or a URI; `top` keys and tags a topic."""

    read: ReadOptions
    out: str
    top: int = TOP


def stats(spark: SparkSession, options: StatsOptions, tell: Callable[[str], None]) -> Result:
    """Make the tables; the summary.

    Raises:
        EddylineError, PySparkException: a topic cannot be read.
    """
    chosen = options.read
    with Cluster.of(chosen) as cluster:
        heads = {topic.name: int(topic.head_seq) for topic in find_topics(cluster, chosen)}
    ends: dict[str, int | str] = {topic: head + 1 for topic, head in heads.items()}
    cut = partial(
        read,
        spark,
        chosen.stores,
        topic=sorted(heads),
        ending_seq=ends,
        patience_s=chosen.patience_s,
        access=chosen.asked,
    )
    records = cut(columns=["topic", "seq", "ts", "op", "key", "tag", "data"], on_gap="warn")
    tell(f"reading {sum(heads.values()):,} records of {len(heads)} topics")
    with on_disk(_grouped(records), rows=len(_SETS) * sum(heads.values())) as grouped:
        tables = {
            "hours": _table(grouped, "hours", ("records", "data_bytes")).orderBy("topic", "hour", "op").toArrow(),
            "sizes": _sizes(grouped).toArrow(),
            "keys": _top(grouped, "keys", "key", options.top).toArrow(),
            "tags": _top(grouped, "tags", "tag", options.top).toArrow(),
        }
    tell("reading gaps")
    tables["gaps"] = _gaps(cut(kind="gaps", starting_seq=1)).toArrow()
    out = OutDir(options.out)
    for name in TABLES:
        with out.writing(f"{name}.parquet") as file:
            pq.write_table(tables[name], file, compression="zstd")
        tell(f"{options.out}/{name}.parquet: {tables[name].num_rows:,} rows")
    return {"out": options.out, "topics": [_summary(topic, tables) for topic in sorted(heads)]}


def _grouped(records: DataFrame) -> DataFrame:
    size = F.coalesce(F.octet_length("data"), F.lit(0)).cast("bigint")
    rows = records.select(
        "topic",
        "seq",
        # By seconds since 1970: what truncates to an hour otherwise does so in the session's time zone.
        F.timestamp_seconds(F.floor(F.unix_seconds("ts") / 3600) * 3600).alias("hour"),
        "op",
        "key",
        "tag",
        size.alias("size"),
        F.ceil(F.log2(size + 1)).cast("int").alias("size_class"),
    )
    sets = [[F.col(name) for name in names] for names in _SETS.values()]
    return rows.groupingSets(sets, *(F.col(name) for name in _DIMENSIONS)).agg(
        F.grouping_id().alias("set"),
        F.count("*").alias("records"),
        F.sum("size").alias("data_bytes"),
        F.max("seq").alias("last_seq"),
    )


def _of_set(grouped: DataFrame, name: str) -> DataFrame:
    # A bit a dimension, the first the highest: 1 where the set does not have it.
    number = sum(1 << place for place, dimension in enumerate(reversed(_DIMENSIONS)) if dimension not in _SETS[name])
    return grouped.where(F.col("set") == number)


def _table(grouped: DataFrame, name: str, figures: tuple[str, ...]) -> DataFrame:
    return _of_set(grouped, name).select(*_SETS[name], *figures)


def _sizes(grouped: DataFrame) -> DataFrame:
    below: Column = F.pow(F.lit(2), F.col("size_class")).cast("bigint").alias("data_bytes_below")
    return (
        _of_set(grouped, "sizes").select("topic", below, "records", "data_bytes").orderBy("topic", "data_bytes_below")
    )


def _top(grouped: DataFrame, name: str, dimension: str, top: int) -> DataFrame:
    rows = _of_set(grouped, name).where(F.col(dimension).isNotNull())
    place = F.row_number().over(Window.partitionBy("topic").orderBy(F.desc("records"), dimension))
    kept = rows.withColumn("place", place).where(F.col("place") <= top).orderBy("topic", "place")
    return kept.select("topic", dimension, "records", "data_bytes", "last_seq")


def _gaps(gaps: DataFrame) -> DataFrame:
    def told(name: str) -> Column:
        return F.expr(f"cast(filter(meta, entry -> entry.name = '{name}')[0].value AS string)")

    return (
        gaps.select(
            "topic",
            told("first_seq").cast("bigint").alias("first_seq"),
            told("last_seq").cast("bigint").alias("last_seq"),
            told("reason").alias("reason"),
        )
        .orderBy("topic", "first_seq")
        .limit(GAPS_MAX)
    )


def _summary(topic: str, tables: dict[str, pa.Table]) -> dict[str, object]:
    mine = {name: [row for row in table.to_pylist() if row["topic"] == topic] for name, table in tables.items()}
    hours: dict[str, int] = {}
    for row in mine["hours"]:
        at = row["hour"].isoformat()
        hours[at] = hours.get(at, 0) + row["records"]
    records = sum(hours.values())
    busiest = max(hours.items(), key=lambda item: item[1], default=("", 0))
    return {
        "topic": topic,
        "records": records,
        "data_bytes": sum(row["data_bytes"] for row in mine["hours"]),
        "hours": len(hours),
        "records_per_hour": round(records / len(hours), 1) if hours else 0,
        "busiest_hour": {"hour": busiest[0], "records": busiest[1]},
        "hot_keys": [
            {"key": bytes(row["key"]).decode(errors="backslashreplace"), "records": row["records"]}
            for row in mine["keys"][:SHOWN]
        ],
        "hot_tags": [{"tag": row["tag"], "records": row["records"]} for row in mine["tags"][:SHOWN]],
        "gaps": len(mine["gaps"]),
        "lost": sum(row["last_seq"] - row["first_seq"] + 1 for row in mine["gaps"] if row["last_seq"]),
    }


class Stats:
    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_topics(parser)
        add_out(parser)
        parser.add_argument("--top", type=int, default=TOP, help="hot keys and tags of a topic (%(default)s)")

    def run(self, spark: SparkSession, arguments: argparse.Namespace) -> Result:
        if not 1 <= arguments.top <= TOP_MAX:
            raise JobError(f"--top: from 1 to {TOP_MAX}", usage=True)
        with Teller(tasks_line(spark)):
            return stats(spark, StatsOptions(read_options(arguments), arguments.out, arguments.top), tell)


if __name__ == "__main__":
    sys.exit(main("stats", ABOUT, Stats()))
