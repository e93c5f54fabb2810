"""A session of Spark Connect: the same reads, through a client that has no JVM."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from eddyline.spark.read import read


def main(store: str, directory: str) -> None:
    spark = (
        SparkSession.builder.remote("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    frame = read(spark, store, topic="routes", columns=["seq", "key_text", "data"])
    rows = [[row["seq"], row["key_text"], bytes(row["data"]).decode()] for row in frame.collect()]
    stream = read(spark, store, topic="routes", stream=True, columns=["seq"], max_records_per_trigger=10)
    query = (
        stream.writeStream.format("parquet")
        .option("checkpointLocation", str(Path(directory) / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(Path(directory) / "out"))
    )
    query.awaitTermination()
    streamed = spark.read.parquet(str(Path(directory) / "out")).count()
    try:
        read(spark, store, topic="routes", columns=["nothing"]).collect()
        refusal = ""
    except PySparkException as error:
        refusal = str(error)
    spark.stop()
    sys.stdout.write(json.dumps({"rows": rows, "streamed": streamed, "refusal": refusal}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
