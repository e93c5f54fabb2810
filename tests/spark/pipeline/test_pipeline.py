"""The pipeline: from the demo's buckets to pictures, by one command; and each of its steps on rows that are known."""

from __future__ import annotations

import asyncio
import datetime
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from eddyline.spark.pipeline.certificates import by_month, newest, parse_value, parsed
from eddyline.spark.pipeline.changes import per_key_and_hour, per_time
from eddyline.spark.pipeline.pictures import draw_changes, draw_expiry

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PNG = b"\x89PNG\r\n\x1a\n"
NOON = datetime.datetime(2026, 3, 29, 12, tzinfo=datetime.UTC)
MONTH = datetime.timedelta(days=31)


def certificate(expires: datetime.datetime) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a test's")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(expires - MONTH)
        .not_valid_after(expires)
        .sign(key, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.PEM)


def test_a_value_is_a_certificate_or_gives_the_reason() -> None:
    assert parse_value(b"k", certificate(NOON)) == {
        "key": "k",
        "subject": "CN=a test's",
        "expires": NOON,
        "month": "2026-03",
    }
    for data in (None, b"", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"):
        assert parse_value(b"\xff", data)["error"]


async def test_certificates_are_counted_by_the_newest_value_of_each_key(spark: SparkSession) -> None:
    rows = [
        (1, 1, "PUT", b"moved", certificate(NOON)),
        (1, 2, "PUT", b"moved", certificate(NOON + MONTH)),
        (1, 3, "PUT", b"gone", certificate(NOON)),
        (1, 4, "DELETE", b"gone", None),
        (1, 9, "PUT", b"epoch", certificate(NOON)),
        (2, 1, "PUT", b"epoch", certificate(NOON + MONTH)),
        (1, 5, "PUT", b"none", b"no certificate"),
        (1, 6, "GAP", None, None),
    ]
    frame = spark.createDataFrame(rows, "epoch bigint, seq bigint, op string, key binary, data binary")
    found = await asyncio.to_thread(by_month(parsed(newest(frame))).collect)
    assert [(row["month"], row["certificates"]) for row in found] == [(None, 1), ("2026-04", 2)]


async def test_changes_are_counted_by_key_and_hour_of_utc(spark: SparkSession) -> None:
    hour = datetime.timedelta(hours=1)
    rows = [
        (1, 1, "PUT", b"a", "a", NOON),
        (1, 2, "PUT", b"a", "a", NOON),
        (1, 3, "DELETE", b"a", "a", NOON + hour - datetime.timedelta(milliseconds=1)),
        (1, 4, "PUT", b"a", "a", NOON + hour),
        (1, 5, "PUT", b"\xff", None, NOON),
        (1, 6, "PURGE", b"\xff", None, NOON),
        (1, 7, "GAP", None, None, None),
    ]
    columns = "epoch bigint, seq bigint, op string, key binary, key_text string, ts timestamp"
    frame = spark.createDataFrame(rows, columns)
    table = await asyncio.to_thread(per_key_and_hour(frame).toArrow)
    found = [tuple(row.values()) for row in table.to_pylist()]
    assert found == [(NOON, "a", 2, 1), (NOON, "FF", 1, 1), (NOON + hour, "a", 1, 0)]
    by_minute = await asyncio.to_thread(per_time(frame).toArrow)
    minute = datetime.timedelta(minutes=1)
    assert [tuple(row.values()) for row in by_minute.to_pylist()] == [
        (NOON, 60, 2, 1),
        (NOON + hour - minute, 60, 1, 1),
        (NOON + hour, 60, 1, 0),
    ]


@pytest.mark.parametrize(("minutes", "seconds"), [(0, 10), (15, 10), (16, 60), (360, 60), (361, 3_600)])
async def test_short_history_is_counted_by_short_times(spark: SparkSession, minutes: int, seconds: int) -> None:
    times = [NOON, NOON, NOON + datetime.timedelta(minutes=minutes)]
    rows = [(1, seq, "PUT", b"a", at) for seq, at in enumerate(times, start=1)]
    frame = spark.createDataFrame(rows, "epoch bigint, seq bigint, op string, key binary, ts timestamp")
    table = await asyncio.to_thread(per_time(frame).toArrow)
    assert set(table.column("seconds").to_pylist()) == {seconds}


def test_pictures_are_drawn_of_much_and_of_nothing(tmp_path: Path) -> None:
    months = [{"month": f"20{year}-0{month}", "certificates": month} for year in range(30, 50) for month in (1, 7)]
    hours = [
        {"hour": NOON + datetime.timedelta(hours=number), "key": "k" * 99, "changes": 30 - number, "deletes": 3}
        for number in range(24)
    ]
    for number, (by_months, by_hours) in enumerate(((months, hours), ([], []))):
        expiry, changes = tmp_path / f"e{number}.png", tmp_path / f"c{number}.png"
        draw_expiry(
            pa.Table.from_pylist(by_months, pa.schema([("month", "string"), ("certificates", "int64")])), expiry
        )
        schema = pa.schema(
            [("hour", pa.timestamp("us", "UTC")), ("key", "string"), ("changes", "int64"), ("deletes", "int64")]
        )
        moments = [
            {"begin": row["hour"], "seconds": 3_600, **{name: row[name] for name in ("changes", "deletes")}}
            for row in by_hours
        ]
        of_time = pa.schema(
            [("begin", pa.timestamp("us", "UTC")), ("seconds", "int32"), ("changes", "int64"), ("deletes", "int64")]
        )
        draw_changes(pa.Table.from_pylist(moments, of_time), pa.Table.from_pylist(by_hours, schema), changes)
        assert expiry.read_bytes().startswith(PNG)
        assert changes.read_bytes().startswith(PNG)


@pytest.mark.timeout(600)
def test_the_whole_of_it_runs_by_one_command(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "eddyline.spark.pipeline", "--out", str(tmp_path), "--changes", "30"],
        env=os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert ended.returncode == 0
    pictures = [line for line in ended.stdout.splitlines() if line.endswith(".png")]
    assert [os.path.basename(path) for path in pictures] == ["certificates.png", "changes.png"]
    found = duckdb.sql(
        f"SELECT topic, count(*), count(DISTINCT seq), max(seq) FROM read_parquet('{tmp_path}/parquet/topic=*/day=*/*')"
        " GROUP BY topic ORDER BY topic"
    )
    assert found is not None
    certs, routes = found.fetchall()
    assert (certs[0], certs[1]) == ("certs", certs[2])
    assert certs[1] == certs[3] > 100
    assert (routes[0], routes[1]) == ("routes", routes[2])
    assert routes[1] == routes[3] > 10_000
    months = duckdb.sql(f"SELECT sum(certificates) FROM '{tmp_path}/tables/certificates_by_month.parquet'")
    assert months is not None
    assert months.fetchall() == [(certs[1],)]
