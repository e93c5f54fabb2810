"""`read`: the options of a read as arguments.

from eddyline.spark.read import read

rows = read(spark, "127.0.0.1:7701", topic="routes", starting_seq=100, columns=["seq", "key", "data"])
changes = read(spark, "127.0.0.1:7701", topic="routes", stream=True, max_records_per_trigger=100_000)
secured = read(spark, "store.internal:7701", topic="routes", access=AccessOptions(key_file="my.key", tls_ca="ca.pem"))
"""

from __future__ import annotations

import base64
import json
from datetime import datetime
from typing import TYPE_CHECKING

from eddyline.spark.options.access import NOT_ASKED
from eddyline.spark.options.values import BINARY_PREFIX
from eddyline.spark.source import register

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from eddyline.spark.options.access import AccessOptions
    from eddyline.spark.options.read import OnGap, ReadKind, TimeBy

Moment = datetime | int
"""With its zone, or milliseconds since 1970."""


def read(
    spark: SparkSession,
    store: str | Sequence[str],
    *,
    topic: str | Sequence[str],
    stream: bool = False,
    kind: ReadKind | None = None,
    starting_seq: int | str | Mapping[str, int | str] | None = None,
    ending_seq: int | str | Mapping[str, int | str] | None = None,
    starting_time: Moment | None = None,
    ending_time: Moment | None = None,
    time_by: TimeBy | None = None,
    as_of_seq: int | None = None,
    as_of_time: Moment | None = None,
    as_of_partitions: int | None = None,
    columns: Sequence[str] = (),
    key_prefixes: Sequence[bytes | str] = (),
    tags: Sequence[str] = (),
    ops: Sequence[str] = (),
    exclude_nodes: Sequence[str] = (),
    max_records_per_partition: int | None = None,
    max_bytes_per_partition: int | None = None,
    max_records_per_trigger: int | None = None,
    on_gap: OnGap | None = None,
    patience_s: int | None = None,
    access: AccessOptions = NOT_ASKED,
) -> DataFrame:
    """Load topics, with the format registered. `topic`: names, or one prefix with `*` at its end. `kind` is the option
    `read`; the others are the options of their names, and what they mean is there. `key_prefixes` that are no text are
    `bytes`; a `str` is taken as it stands.

    Raises:
        EddylineError, as Spark's AnalysisException, at once or when it is first looked at (Connect).
    """
    register(spark)
    given = {
        "store": store if isinstance(store, str) else ",".join(store),
        "topics": topic if isinstance(topic, str) else _listed(topic),
        "read": kind,
        "startingSeq": _seq(starting_seq),
        "endingSeq": _seq(ending_seq),
        "startingTimestamp": _time(starting_time),
        "endingTimestamp": _time(ending_time),
        "timeBy": time_by,
        "asOfSeq": as_of_seq,
        "asOfTimestamp": _time(as_of_time),
        "asOfPartitions": as_of_partitions,
        "columns": _listed(columns),
        "keyPrefixes": _listed([_prefix(prefix) for prefix in key_prefixes]),
        "tags": _listed(tags),
        "ops": _listed(ops),
        "excludeNodes": _listed(exclude_nodes),
        "maxRecordsPerPartition": max_records_per_partition,
        "maxBytesPerPartition": max_bytes_per_partition,
        "maxRecordsPerTrigger": max_records_per_trigger,
        "onGap": on_gap,
        "patienceSeconds": patience_s,
        **access.as_options(),
    }
    options = {name: str(value) for name, value in given.items() if value is not None}
    return (spark.readStream if stream else spark.read).format("eddyline").options(**options).load()


def _listed(values: Sequence[str]) -> str | None:
    return json.dumps(list(values)) if values else None


def _prefix(prefix: bytes | str) -> str:
    raw = prefix.encode() if isinstance(prefix, str) else prefix
    return BINARY_PREFIX + base64.b64encode(raw).decode()


def _seq(bound: int | str | Mapping[str, int | str] | None) -> str | None:
    if bound is None or isinstance(bound, int | str):
        return None if bound is None else str(bound)
    return json.dumps(dict(bound))


def _time(moment: Moment | None) -> str | None:
    return moment.isoformat() if isinstance(moment, datetime) else None if moment is None else str(moment)
