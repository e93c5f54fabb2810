"""Output of verbs: text for people, an object a line for programs."""

from __future__ import annotations

import io
import json

from eddyline.cli.commands.sources.source_fields import source_fields
from eddyline.cli.terminal.output import (
    Output,
    aligned,
    format_time,
    gap_fields,
    gap_line,
    put_bytes,
    record_fields,
    record_line,
)
from eddyline.client.admin.sources import Source
from eddyline.core.model.source import SourceDefinition
from eddyline.core.records.record import MARKER_REASON, Gap, GapReason, MetaEntry, Op, Record
from eddyline.core.runtime.text import printable


def test_bytes_are_text_or_base64_under_another_name() -> None:
    fields: dict[str, object] = {}
    put_bytes(fields, "key", "ü".encode())  # type: ignore[arg-type]
    put_bytes(fields, "data", b"\xff\x00")  # type: ignore[arg-type]
    put_bytes(fields, "tag", None)  # type: ignore[arg-type]
    assert fields == {"key": "ü", "data_base64": "/wA="}


def test_text_output_has_the_reason_of_a_nats_removal() -> None:
    def line(op: Op, *meta: MetaEntry) -> str:
        return record_line(Record(op=op, key=b"k", meta=meta))

    assert line(Op.PURGE, MetaEntry(MARKER_REASON, b"MaxAge")).endswith("k  (by NATS: expired)")
    assert line(Op.DELETE, MetaEntry(MARKER_REASON, b"Remove")).endswith("k  (by NATS: removed)")
    assert line(Op.PURGE, MetaEntry(MARKER_REASON, b"Later")).endswith("k  (by NATS: Later)")
    assert line(Op.PURGE, MetaEntry("other", b"x")).endswith("k")
    assert line(Op.PUT, MetaEntry(MARKER_REASON, b"MaxAge")).endswith("k")


def test_bytes_for_people_are_printable_and_cut() -> None:
    assert printable(None) == "-"
    assert printable(b"plain") == "plain"
    assert printable(b"a\nb") == '"a\\nb"'
    assert printable(b"\xff\x01") == "0xff01"
    assert printable(b"0123456789", 5) == "0123…"


def test_different_bytes_look_different_to_people() -> None:
    texts = [
        "plain",
        "a\nb",
        "a\\nb",
        '"a\\nb"',
        '"a\nb"',
        '"paid"',
        "paid",
        '"\\"paid\\""',
        "0xff",
        '"0xff"',
        "-",
        '"-"',
    ]
    texts += ["\u2028\x7f", "a\tb"]
    values = [text.encode() for text in texts] + [b"\xff", b"0xff\xff", b'"', b'"0xff', None]
    nested = b"0xff"
    for _ in range(4):
        nested = printable(nested).encode()
        values.append(nested)
    shown = [printable(value) for value in dict.fromkeys(values)]
    assert len(set(shown)) == len(shown)
    assert all(text.isprintable() for text in shown)
    assert printable(b'{"a": "b\\n"}') == '{"a": "b\\n"}', "JSON stays as it is"
    assert printable(b'"paid"') == '"paid"'


def test_record_is_one_json_line() -> None:
    record = Record(3, 1000, 7, Op.PUT, b"k", b"", "tag", "node", (MetaEntry("m", b"\xff"),), b"\x01")
    stream = io.StringIO()
    Output("json", stream=stream).print_result("text", record_fields(record))
    assert stream.getvalue().count("\n") == 1
    assert json.loads(stream.getvalue()) == {
        "seq": 3,
        "ts_ms": 1000,
        "op": "PUT",
        "source_ts_ns": 7,
        "key": "k",
        "data": "",
        "tag": "tag",
        "node": "node",
        "meta": [{"name": "m", "value_base64": "/w=="}],
        "version": "01",
    }


def test_version_is_the_number_it_is() -> None:
    assert record_fields(Record(1, 2, version=(17).to_bytes(8, "big")))["version"] == 17
    assert record_fields(Record(1, 2, version=b"\x01\x02"))["version"] == "0102"


def test_history_line_has_revision_and_time_of_the_source() -> None:
    record = Record(9, 1_000, 2_500_000_000, Op.PUT, b"k", b"v", version=(17).to_bytes(8, "big"))
    assert "PUT     revision 17 of 1970-01-01 00:00:02.500  k  v" in record_line(record, of_source=True)
    assert "revision" not in record_line(record)
    assert "revision" not in record_line(record._replace(source_ts_ns=0), of_source=True)


def test_absent_fields_are_left_out() -> None:
    assert record_fields(Record(1, 2, op=Op.APPEND)) == {"seq": 1, "ts_ms": 2, "op": "APPEND"}


def test_gap_names_its_range_and_reason() -> None:
    gap = Gap(5, 5, GapReason.SOURCE_GAP, seq=5, source_first=10, source_last=20)
    assert gap_fields(gap) == {
        "gap": "SOURCE_GAP",
        "first_seq": 5,
        "last_seq": 5,
        "seq": 5,
        "source_first": 10,
        "source_last": 20,
    }
    assert gap_line(gap) == "     GAP  SOURCE_GAP: source revisions 10 to 20 lost (gap at 5)"
    assert "source revision 10 lost" in gap_line(gap._replace(source_last=10))
    unknown = gap._replace(source_last=0)
    assert gap_fields(unknown)["source_last"] == 0
    assert gap_line(unknown).endswith("source revisions from 10 on, in unknown number, lost (gap at 5)")
    assert gap_line(Gap(3, 4, GapReason.CAP)).endswith("CAP: lost 3 to 4")
    assert "epoch 1, now 2" in gap_line(Gap(0, 0, GapReason.RECREATED, old_epoch=1, new_epoch=2))


def test_ops_and_reasons_of_a_newer_server_are_numbers() -> None:
    assert "99" in record_line(Record(1, 0, op=99))
    assert gap_fields(Gap(1, 2, 88))["gap"] == "88"


def test_times_are_utc_to_the_millisecond() -> None:
    assert format_time(1_700_000_000_123) == "2023-11-14 22:13:20.123"


def test_table_is_aligned_for_people_and_objects_for_programs() -> None:
    assert aligned([("A", "BB"), ("ccc", "d")]) == ["A    BB", "ccc  d"]
    people, programs = io.StringIO(), io.StringIO()
    for output in (Output(stream=people), Output("json", stream=programs)):
        output.table(("NAME",), [("a",), ("b",)], [{"name": "a"}, {"name": "b"}])
        output.print_text("for people")
    assert people.getvalue() == "NAME\na\nb\nfor people\n"
    assert [json.loads(line) for line in programs.getvalue().splitlines()] == [{"name": "a"}, {"name": "b"}]


def test_prefixes_of_a_source_are_exact_in_json() -> None:
    definition = SourceDefinition("s", "t", "b", key_prefixes=(b"0xff", b"\xff", b"a\nb"))
    source = Source(definition, "LIVE", "", 0, 0, 0, "", 0, 0)
    assert source_fields(source)["key_prefixes"] == ["0xff", {"base64": "/w=="}, "a\nb"]
