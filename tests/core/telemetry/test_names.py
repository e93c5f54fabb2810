"""Log formats and metric names."""

from __future__ import annotations

import io
import json
import logging
import re
from typing import TYPE_CHECKING

import pytest

from eddyline.core.runtime.logging import JsonFormatter, PlainFormatter, fields, set_up_logging
from eddyline.core.telemetry import names as telemetry

if TYPE_CHECKING:
    from collections.abc import Iterator


def entry(event: str, /, **values: str | float | bool | bytes | None) -> logging.LogRecord:
    record = logging.LogRecord("eddyline.x", logging.INFO, "", 0, event, None, None)
    record.created = 1_700_000_000.25
    vars(record).update(fields(**values))
    return record


def test_json_is_one_object_with_the_fields() -> None:
    line = JsonFormatter("store").format(entry("lease won", source="orders", fence=3, position=b"\x01\xff"))
    assert json.loads(line) == {
        "time": "2023-11-14T22:13:20.250Z",
        "level": "INFO",
        "role": "store",
        "logger": "eddyline.x",
        "event": "lease won",
        "source": "orders",
        "fence": 3,
        "position": "01ff",
    }


def test_a_field_never_hides_the_event() -> None:
    assert json.loads(JsonFormatter("store").format(entry("true event", event="false")))["event"] == "true event"


def test_plain_is_one_line_with_quotes_where_needed() -> None:
    line = PlainFormatter("store").format(entry("lease won", source="orders", why="a b\nc", empty=""))
    assert line == 'store    | 2023-11-14T22:13:20.250Z INFO lease won source=orders why="a b\\nc" empty=""'


@pytest.fixture
def root_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.usefixtures("root_logging")
def test_set_up_sends_the_level_and_above_with_traces() -> None:
    stream = io.StringIO()
    root = logging.getLogger()
    root.handlers.clear()
    set_up_logging("ingest", level="WARNING", log_format="json", stream=stream)
    log = logging.getLogger("eddyline.test")
    log.info("not shown")
    try:
        raise ValueError("why")
    except ValueError:
        log.exception("shown", extra=fields(id="x"))
    line = json.loads(stream.getvalue())
    assert (line["event"], line["id"], line["role"]) == ("shown", "x", "ingest")
    assert "ValueError: why" in line["trace"]


def test_metric_names_are_distinct_and_have_role_and_unit() -> None:
    names = [value for name, value in vars(telemetry).items() if name.startswith(("STORE_", "INGEST_", "DELIVERY_"))]
    assert len(set(names)) == len(names) > 0
    assert all(re.fullmatch(r"eddyline_(store|ingest|delivery)_[a-z_]+", name) for name in names)
