"""Options of reads: parsed once, refused by their names."""

from __future__ import annotations

import pytest

from eddyline.core.errors import EddylineError
from eddyline.core.records.record import Op
from eddyline.spark.options.read import NAMES, check_stream, parse_options

pytestmark = pytest.mark.spark

PLACE = {"store": "127.0.0.1:7701", "topic": "routes"}


def test_keys_are_read_in_any_case_and_path_is_passed_over() -> None:
    parsed = parse_options({"STORE": "a:1,b:2", "Topics": "routes, certs", "onGAP": "Rows", "path": "file:/somewhere"})
    assert (parsed.stores, parsed.topics, parsed.on_gap) == (("a:1", "b:2"), ("routes", "certs"), "rows")


def test_a_name_with_a_star_is_a_prefix() -> None:
    parsed = parse_options(PLACE | {"topic": "routes.*"})
    assert (parsed.topics, parsed.topic_prefix) == ((), "routes.")


def test_key_prefixes_are_text_or_bytes_in_base64() -> None:
    assert parse_options(PLACE | {"keyPrefixes": "a., base64:AP8="}).records.key_prefixes == (b"a.", b"\x00\xff")


def test_a_json_list_carries_commas() -> None:
    assert parse_options(PLACE | {"tags": '["a,b", " c"]'}).records.tags == ("a,b", " c")


def test_ops_are_named() -> None:
    assert parse_options(PLACE | {"ops": "put,DELETE"}).records.ops == (Op.PUT, Op.DELETE)


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("1970-01-01T00:00:00.000001Z", 1_000),
        ("2026-03-29T03:30:00+02:00", 1_774_747_800_000_000_000),
        ("1774747800000", 1_774_747_800_000_000_000),
        ("-1", -1_000_000),
    ],
)
def test_times_have_a_zone_or_are_milliseconds(text: str, nanoseconds: int) -> None:
    assert parse_options(PLACE | {"startingTimestamp": text}).starting_ns == nanoseconds


def test_seqs_are_for_all_topics_or_by_topic() -> None:
    assert parse_options(PLACE | {"startingSeq": "5"}).starting_seq == 5
    both = PLACE | {"topic": "routes,certs"}
    assert parse_options(both | {"startingSeq": '{"routes": 5, "certs": "latest"}'}).starting_seq == {
        "routes": 5,
        "certs": "latest",
    }


@pytest.mark.parametrize(
    ("option", "more"),
    [
        ("startingOffsets", {"startingOffsets": "earliest"}),
        ("store", {"store": ""}),
        ("store", {"store": "nowhere"}),
        ("store", {"store": "http://127.0.0.1:7701"}),
        ("topic", {"topics": "certs"}),
        ("topic", {"topic": "routes.*,certs"}),
        ("topic", {"topic": "no/name"}),
        ("read", {"read": "all"}),
        ("startingSeq", {"startingSeq": "0"}),
        ("startingSeq", {"startingSeq": "-1"}),
        ("startingSeq", {"startingSeq": "{"}),
        ("startingSeq", {"startingSeq": '{"routs": 5}'}),
        ("endingSeq", {"endingSeq": '{"routes": 5, "certs": 5}'}),
        ("endingSeq", {"topic": "routes.*", "endingSeq": '{"routes": 5}'}),
        ("endingSeq", {"endingSeq": "earliest"}),
        ("startingTimestamp", {"startingTimestamp": "2026-01-01T00:00:00"}),
        ("endingTimestamp", {"endingTimestamp": "yesterday"}),
        ("startingSeq", {"startingSeq": "1", "startingTimestamp": "0"}),
        ("timeBy", {"timeBy": "source"}),
        ("timeBy", {"timeBy": "wall", "startingTimestamp": "0"}),
        ("asOfSeq", {"asOfSeq": "5"}),
        ("asOfSeq", {"read": "asOf"}),
        ("asOfSeq", {"read": "asOf", "asOfSeq": "1", "topic": "routes.*"}),
        ("asOfPartitions", {"asOfPartitions": "2"}),
        ("asOfPartitions", {"asOfPartitions": "0", "read": "fold"}),
        ("tags", {"tags": "a", "read": "fold"}),
        ("startingSeq", {"startingSeq": "1", "read": "fold"}),
        ("tags", {"tags": "[1]"}),
        ("tags", {"tags": " "}),
        ("keyPrefixes", {"keyPrefixes": "base64:?"}),
        ("ops", {"ops": "GAP"}),
        ("onGap", {"onGap": "ignore"}),
        ("maxRecordsPerPartition", {"maxRecordsPerPartition": "many"}),
        ("patienceSeconds", {"patienceSeconds": "0"}),
    ],
)
def test_what_cannot_be_is_refused_by_the_options_name(option: str, more: dict[str, str]) -> None:
    with pytest.raises(EddylineError) as refusal:
        parse_options(PLACE | more)
    assert refusal.value.metadata["field"] == option
    assert option in refusal.value.message


@pytest.mark.parametrize(
    ("given", "meant"), [("startingseqs", "startingSeq"), ("on_gap", "onGap"), ("topcs", "topics")]
)
def test_an_option_that_is_near_one_is_refused_with_that_one(given: str, meant: str) -> None:
    with pytest.raises(EddylineError, match=rf"option {given}: it is unknown; did you mean {meant}\? a read has"):
        parse_options(PLACE | {given: "1"})


def test_an_option_that_is_near_none_is_refused_with_all_there_are() -> None:
    with pytest.raises(EddylineError, match="option zzz: it is unknown; a read has asOfPartitions, "):
        parse_options(PLACE | {"zzz": "1"})


@pytest.mark.parametrize("more", [{"endingSeq": "5"}, {"read": "fold"}, {"read": "asOf", "asOfSeq": "5"}])
def test_a_stream_refuses_what_has_an_end(more: dict[str, str]) -> None:
    with pytest.raises(EddylineError):
        check_stream(PLACE | more)


def test_every_option_is_spelt_once() -> None:
    assert all(key == name.lower() for key, name in NAMES.items())
