"""Changes: each record of a key after its first, by the time (UTC) of its commit; by key and hour, and by shorter times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F
from pyspark.sql.window import Window

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


HOUR_S: Final = 3_600
SPANS_S: Final = ((900, 10), (6 * HOUR_S, 60))
"""History up to so long is counted by so many seconds: 90 bars of a quarter of an hour, 360 of six hours. A longer one is
counted by the hour."""


def changes_of(records: DataFrame) -> DataFrame:
    """Records of keys that were there before, with `is_delete`."""
    nth = F.row_number().over(Window.partitionBy("epoch", "key").orderBy("seq"))
    changes = records.where("key IS NOT NULL").withColumn("nth", nth).where("nth > 1")
    return changes.withColumn("is_delete", F.when(F.col("op") == "PUT", 0).otherwise(1))


def per_key_and_hour(records: DataFrame) -> DataFrame:
    """Columns hour, key, changes, deletes: the rows with most changes first."""
    return (
        changes_of(records)
        .groupBy(_begin_of(HOUR_S).alias("hour"), F.coalesce("key_text", F.hex("key")).alias("key"))
        .agg(F.count("*").alias("changes"), F.sum("is_delete").alias("deletes"))
        .orderBy(F.desc("changes"), "hour", "key")
    )


def per_time(records: DataFrame) -> DataFrame:
    """Columns begin, seconds (the length of each time: 10, 60 or 3 600, by the history's), changes, deletes; in order."""
    changes = changes_of(records)
    (bounds,) = changes.select(F.max(F.unix_seconds("ts")) - F.min(F.unix_seconds("ts"))).collect()
    seconds = next((short for span, short in SPANS_S if (bounds[0] or 0) <= span), HOUR_S)
    return (
        changes.groupBy(_begin_of(seconds).alias("begin"))
        .agg(F.count("*").alias("changes"), F.sum("is_delete").alias("deletes"))
        .select("begin", F.lit(seconds).alias("seconds"), "changes", "deletes")
        .orderBy("begin")
    )


def _begin_of(seconds: int) -> Column:
    # By seconds since 1970: what truncates to an hour otherwise does so in the session's time zone.
    return F.timestamp_seconds(F.floor(F.unix_seconds("ts") / seconds) * seconds)
