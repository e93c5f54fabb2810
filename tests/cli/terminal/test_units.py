"""Durations, sizes and times: exact, and refused where they could mean two things."""

from __future__ import annotations

import argparse

import pytest

from eddyline.cli.main import parse_arguments
from eddyline.cli.terminal.units import (
    commit_time_ns,
    duration_ms,
    format_bytes,
    format_duration,
    pluralize,
    size_bytes,
    source_time_ns,
)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("0", 0),
        ("off", 0),
        ("24h", 86_400_000),
        ("1h30m", 5_400_000),
        ("500ms", 500),
        ("2m", 120_000),
        ("1w", 604_800_000),
    ],
)
def test_a_duration_has_its_unit(text: str, milliseconds: int) -> None:
    assert duration_ms(text) == milliseconds


@pytest.mark.parametrize("text", ["", "24", "1.5h", "-1h", "1y", "h", "1h 30m"])
def test_a_duration_without_one_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="24h"):
        duration_ms(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("off", 0), ("4096", 4096), ("64MiB", 64 << 20), ("10GB", 10**10), ("1 kib", 1024), ("7B", 7)],
)
def test_size_defaults_to_bytes(text: str, size: int) -> None:
    assert size_bytes(text) == size


@pytest.mark.parametrize("text", ["", "64M", "-1", "1.5GiB", "MiB", "1XB"])
def test_a_size_of_an_unclear_unit_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="64MiB"):
        size_bytes(text)


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("1970-01-01T00:00:01Z", 1_000_000_000),
        ("1970-01-01t01:00:00.000000001+01:00", 1),
        ("1969-12-31T23:59:59.5z", -500_000_000),
        ("2026-11-28 09:30:00.25Z", 1_795_858_200_250_000_000),
    ],
)
def test_a_time_is_rfc_3339_to_the_nanosecond(text: str, nanoseconds: int) -> None:
    assert commit_time_ns(text) == source_time_ns(text) == nanoseconds


def test_a_number_is_in_the_unit_that_its_field_has() -> None:
    assert commit_time_ns("5") == 5_000_000
    assert source_time_ns("-5") == -5


@pytest.mark.parametrize("text", ["", "2026-11-28T09:30:00", "2026-11-28", "2026-13-28T09:30:00Z", "yesterday", "1.5"])
def test_a_time_without_an_offset_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="RFC 3339"):
        commit_time_ns(text)


@pytest.mark.parametrize("milliseconds", [0, 1, 90_000, 86_400_000, 90_061_001])
def test_printed_duration_parses_to_itself(milliseconds: int) -> None:
    assert duration_ms(format_duration(milliseconds)) == milliseconds


def test_sizes_are_printed_to_a_tenth() -> None:
    shown = [format_bytes(size) for size in (0, 1023, 1024, 1536, 64 << 20, (1 << 40) + (1 << 39))]
    assert shown == ["0B", "1023B", "1KiB", "1.5KiB", "64MiB", "1.5TiB"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--ttl -5s", "argument --ttl: '-5s' is below 0"),
        ("--cap-bytes -5MiB", "argument --cap-bytes: '-5MiB' is below 0"),
        ("--cap-bytes -.5", "argument --cap-bytes: '-.5' is below 0"),
        ("--cap-records -5", "argument --cap-records: -5 is below 0"),
        ("--idempotency-window=-1h", "argument --idempotency-window: '-1h' is below 0"),
        ("--ttl -x", "argument --ttl: expected one argument"),
    ],
)
def test_a_negative_value_is_a_value_and_refused_as_one(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_arguments(["topic", "update", "t", *words.split()])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_a_value_that_begins_like_a_number_below_zero_is_appended() -> None:
    assert parse_arguments(["append", "t", "-5s", "--key", "-1x"]).values == ["-5s"]


def test_count_of_one_is_singular() -> None:
    said = [pluralize(number, what) for number in (0, 1, 2) for what in ("key", "entry", "prefix")]
    assert said == [
        "0 keys",
        "0 entries",
        "0 prefixes",
        "1 key",
        "1 entry",
        "1 prefix",
        "2 keys",
        "2 entries",
        "2 prefixes",
    ]
