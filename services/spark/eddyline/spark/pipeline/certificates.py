"""Certificates by the month in which they expire: the newest value of each key of exported PEM values, parsed in tasks.

A value that is no certificate is a row with `error`, and is counted: it is never left out without a word.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.window import Window

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

PARSED: Final = "key string, subject string, expires timestamp, month string, error string"
_ARROW: Final = pa.schema(
    [
        ("key", pa.string()),
        ("subject", pa.string()),
        ("expires", pa.timestamp("us", tz="UTC")),
        ("month", pa.string()),
        ("error", pa.string()),
    ]
)


def newest(records: DataFrame) -> DataFrame:
    """Of each key the newest record that is there, where it is a value."""
    place = F.row_number().over(Window.partitionBy("key").orderBy(F.desc("epoch"), F.desc("seq")))
    last = records.where("key IS NOT NULL").withColumn("place", place).where("place = 1")
    return last.where("op = 'PUT'").drop("place")


def parsed(values: DataFrame) -> DataFrame:
    """The certificate fields of each value."""
    return values.select("key", "data").mapInArrow(parse_batches, PARSED)


def by_month(certificates: DataFrame) -> DataFrame:
    """How many expire in each month; those that are no certificates under no month."""
    return certificates.groupBy("month").count().withColumnRenamed("count", "certificates").orderBy("month")


def parse_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Parse PEM values, a batch at a time."""
    for batch in batches:
        rows = [
            parse_value(key, data)
            for key, data in zip(batch.column("key").to_pylist(), batch.column("data").to_pylist(), strict=True)
        ]
        yield pa.RecordBatch.from_pylist(rows, schema=_ARROW)


def parse_value(key: bytes, data: bytes | None) -> dict[str, object]:
    """Return the fields of a value's certificate, or in `error` the reason why it has none."""
    # Here: in the pipeline's environment alone.
    from cryptography import x509
    from cryptography.utils import CryptographyDeprecationWarning

    row: dict[str, object] = {"key": key.decode(errors="backslashreplace")}
    try:
        with warnings.catch_warnings():
            # Some old authorities have serial numbers that are not positive; they are in use.
            warnings.simplefilter("ignore", CryptographyDeprecationWarning)
            certificate = x509.load_pem_x509_certificate(data or b"")
    except ValueError as error:
        return {**row, "error": str(error).splitlines()[0] if str(error) else type(error).__name__}
    expires = certificate.not_valid_after_utc
    subject = certificate.subject.rfc4514_string()
    return {**row, "subject": subject, "expires": expires, "month": f"{expires:%Y-%m}"}
