"""Changes per key per hour: each record of a key after its first, by the hour (UTC) of its commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.window import Window

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def per_key_and_hour(records: DataFrame) -> DataFrame:
    """Columns hour, key, changes, deletes: the rows with most changes first."""
    nth = F.row_number().over(Window.partitionBy("epoch", "key").orderBy("seq"))
    changes = records.where("key IS NOT NULL").withColumn("nth", nth).where("nth > 1")
    return (
        changes.groupBy(
            # By seconds since 1970: what truncates to an hour otherwise does so in the session's time zone.
            F.timestamp_seconds(F.floor(F.unix_seconds("ts") / 3600) * 3600).alias("hour"),
            F.coalesce("key_text", F.hex("key")).alias("key"),
        )
        .agg(F.count("*").alias("changes"), F.sum(F.when(F.col("op") == "PUT", 0).otherwise(1)).alias("deletes"))
        .orderBy(F.desc("changes"), "hour", "key")
    )
