"""Options of a write: parsed once, refused by name."""

from __future__ import annotations

import pytest

from eddyline.core.errors import EddylineError, InvalidArgument
from eddyline.core.model.topic import Kind
from eddyline.spark.options.write import BATCH_RECORDS, parse_write_options

pytestmark = pytest.mark.spark

NEEDED = {"store": "a:1, b:2", "topic": "t"}


def test_what_is_left_out_has_its_default() -> None:
    options = parse_write_options(NEEDED)
    assert (options.stores, options.topic, options.create) == (("a:1", "b:2"), "t", None)
    assert (options.batch_records, options.on_different_rows) == (BATCH_RECORDS, "append")


def test_names_are_taken_in_any_case_next_to_those_of_spark() -> None:
    given = {**NEEDED, "createtopic": "kv", "WRITEID": "w", "checkpointlocation": "/c", "path": "/p"}
    options = parse_write_options(given)
    assert (options.create, options.write_id) == (Kind.KV, "w")


def test_a_named_write_refuses_other_rows_unless_it_has_the_option() -> None:
    assert parse_write_options({**NEEDED, "writeId": "w"}).on_different_rows == "fail"
    told = {**NEEDED, "writeId": "w", "onDifferentRows": "append"}
    assert parse_write_options(told).on_different_rows == "append"


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"topic": "t"}, "option store"),
        ({"store": "a:1"}, "option topic"),
        ({**NEEDED, "store": "nowhere"}, "option store"),
        ({**NEEDED, "topic": "two, topics"}, "topic name 'two, topics'"),
        ({**NEEDED, "createTopic": "queue"}, "option createTopic: 'queue' is not one of LOG, KV"),
        ({**NEEDED, "writeId": "a/b"}, "writeId name 'a/b'"),
        ({**NEEDED, "writeId": "a" * 201}, "option writeId"),
        ({**NEEDED, "onDifferentRows": "skip"}, "option onDifferentRows"),
        ({**NEEDED, "batchRecords": "999"}, "option batchRecords: '999' is not a whole number from 1000 to 10000"),
        ({**NEEDED, "batchBytes": "x"}, "option batchBytes"),
        ({**NEEDED, "patienceSeconds": "0"}, "option patienceSeconds"),
        ({**NEEDED, "topics": "t"}, "option topics: it is unknown"),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, str], named: str) -> None:
    with pytest.raises(EddylineError) as raised:
        parse_write_options(given)
    assert named in raised.value.message
    assert raised.value.reason in {InvalidArgument.reason, "INVALID_NAME"}
