"""Records as JSON objects, the way in: what was printed comes back, and what is wrong is named."""

from __future__ import annotations

import json

import pytest

from eddyline.cli.errors import CommandError
from eddyline.cli.terminal.json_record import record_from_json
from eddyline.cli.terminal.output import record_fields
from eddyline.core.records.record import MetaEntry, Op, Record


def test_record_that_was_printed_comes_back() -> None:
    printed = Record(
        3,
        5,
        op=Op.DELETE,
        key=b"\xff",
        data=b"\xfe",
        tag="t",
        node="n",
        meta=(MetaEntry("m", b"v"), MetaEntry("b", b"\xff")),
        version=b"\x01",
    )
    fields = {**record_fields(printed), "topic": "t", "in_snapshot": False}
    assert record_from_json(json.dumps(fields).encode(), Record()) == printed._replace(seq=0, ts_ms=0, version=b"")


def test_omitted_fields_come_from_the_template() -> None:
    template = Record(op=Op.PUT, key=b"k", tag="t")
    assert record_from_json(b'{"data":""}', template) == template._replace(data=b"")


def test_meta_may_be_an_object() -> None:
    record = record_from_json('{"meta": {"a": "b", "c": "ü"}}'.encode(), Record())
    assert record.meta == (MetaEntry("a", b"b"), MetaEntry("c", "ü".encode()))


def test_names_of_meta_are_the_users_where_it_is_an_object() -> None:
    record = record_from_json(b'{"meta": {"sum": "1", "sum_base64": "?"}}', Record())
    assert record.meta == (MetaEntry("sum", b"1"), MetaEntry("sum_base64", b"?"))


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16", "utf-32-be", "latin-1"])
def test_non_utf8_text_is_refused(encoding: str) -> None:
    with pytest.raises(CommandError, match=r"^not UTF-8 at byte [0-9]+: "):
        record_from_json('{"data": "ü"}'.encode(encoding), Record())


def test_a_byte_order_mark_is_passed_over() -> None:
    assert record_from_json('{"data": "ü"}'.encode("utf-8-sig"), Record()) == Record(data="ü".encode())


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "column 1: not JSON: a value is missing here"),
        (
            '{"key": "k", "data": v}',
            "column 22: not JSON: a value is missing here, or a text without its double quotes: ",
        ),
        ('{"key": "k"\n"data": "v"}', "line 2, column 1: not JSON: a comma or a closing bracket is missing here"),
        ('{"key": "k"} x', "column 14: not JSON: more text after the end of the object"),
        ('{"key" "k"}', "column 8: not JSON: a colon is missing here"),
        ('{"key": "k', "column 9: not JSON: the text that begins here has no closing quote"),
        ('{"key": "\\q"}', r"not JSON: an unknown escape; write a backslash as \\"),
        ('{"kee":"x"}', "unknown field 'kee' (did you mean key?); fields are key, key_base64, data,"),
        ("[]", "not an object"),
        ("{", "column 2: not JSON: a field name in double quotes is missing here"),
        ('{"key":1}', "key is not a string"),
        ('{"data":{}}', "data is not a string; JSON data goes in as a string"),
        ('{"tag":1}', "tag is not a string"),
        ('{"op":"NONE"}', "op 'NONE' is none of APPEND, PUT, DELETE, PURGE"),
        ('{"data_base64":"?"}', "data_base64 is not base64"),
        ('{"data":"a","data_base64":"YQ=="}', "data and data_base64 are both given"),
        ('{"meta":[1]}', "an entry of meta is"),
        ('{"meta":"x"}', "meta is neither"),
        ('{"meta":{"a":1}}', "a is not a string"),
        ('{"dta":"x","ky":"y"}', "unknown fields 'dta', 'ky'"),
        ('{"gap":"EVICTED"}', "a gap"),
        ('{"event":"caught_up"}', "an event"),
        ("[" * 100_000, "nested too deeply"),
        *(
            (f'{{"{field}":{value}}}', "has half a surrogate pair")
            for field in ("key", "data", "tag", "node", "meta")
            for value in (
                ('"\\ud800"',) if field != "meta" else ('{"\\ud800":"x"}', '{"x":"\\ud800"}', '[{"name":"\\ud800"}]')
            )
        ),
    ],
)
def test_invalid_record_is_refused_with_a_reason(line: str, said: str) -> None:
    with pytest.raises(CommandError) as caught:
        record_from_json(line.encode(), Record())
    assert said in caught.value.message
    is_of_a_field = not said.startswith(("column", "line", "not ", "a gap", "an event", "nested"))
    assert not (is_of_a_field and "not a JSON record" in caught.value.message)
