"""JetStream's bytes: ack subjects, headers, statuses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eddyline.core.records.meta import decode_meta
from eddyline.core.records.record import MARKER_REASON, MetaEntry, Op
from eddyline.ingest.copy.decode import (
    Delivery,
    TooLarge,
    Unreadable,
    check_fits,
    parse_ack,
    parse_headers,
    parse_status,
)
from eddyline.ingest.nats.stream import server_time_ns


def block(*lines: bytes) -> bytes:
    """Make a header block."""
    return b"\r\n".join((b"NATS/1.0", *lines, b"", b""))


@pytest.mark.parametrize(
    "reply",
    [
        b"$JS.ACK.KV_b.c.1.7.3.1795817145504144550.2",
        b"$JS.ACK.hub.ACCHASH.KV_b.c.1.7.3.1795817145504144550.2",
        b"$JS.ACK.hub.ACCHASH.KV_b.c.1.7.3.1795817145504144550.2.token",
        b"$JS.ACK._.ACCHASH.KV_b.c.1.7.3.1795817145504144550.2.token",
    ],
)
def test_ack_subject_is_read_with_and_without_domain(reply: bytes) -> None:
    assert parse_ack(reply) == Delivery(7, 3, 1795817145504144550, 2)


@given(st.binary(max_size=60))
def test_other_reply_subjects_are_unreadable(reply: bytes) -> None:
    with pytest.raises(Unreadable):
        parse_ack(reply)


@pytest.mark.parametrize(
    ("line", "op"),
    [
        (b"KV-Operation: DEL", Op.DELETE),
        (b"KV-Operation: PURGE", Op.PURGE),
        (b"KV-Operation: PUT", Op.PUT),
        (b"Nats-TTL: 5s", Op.PUT),
    ],
)
def test_operations_are_understood_and_leave_no_meta(line: bytes, op: Op) -> None:
    assert parse_headers(block(line)) == (op, b"")


@pytest.mark.parametrize(
    ("reason", "op"), [(b"MaxAge", Op.PURGE), (b"Purge", Op.PURGE), (b"Remove", Op.DELETE), (b"Later", Op.PUT)]
)
def test_reason_of_a_marker_is_kept(reason: bytes, op: Op) -> None:
    meaning = parse_headers(block(b"Nats-Marker-Reason: " + reason, b"Nats-TTL: 1s"))
    assert meaning.op is op
    assert decode_meta(meaning.meta) == (MetaEntry(MARKER_REASON, reason),)


def test_meta_keeps_order_repeats_and_empty_values() -> None:
    meaning = parse_headers(block(b"B: 2", b"A:1", b"B:", b"Nats-Msg-Id: x", b"b: http://x"))
    assert decode_meta(meaning.meta) == (
        MetaEntry("B", b"2"),
        MetaEntry("A", b"1"),
        MetaEntry("B", b""),
        MetaEntry("b", b"http://x"),
    )


def test_header_names_that_are_not_utf8_are_escaped() -> None:
    assert decode_meta(parse_headers(block(b"\xff: 1")).meta)[0].name == "\\xff"


@given(st.binary(max_size=200))
def test_any_header_block_is_read_or_refused(block_bytes: bytes) -> None:
    meaning = parse_headers(b"NATS/1.0\r\n" + block_bytes)
    decode_meta(meaning.meta)


def test_more_meta_than_a_record_takes_is_too_large() -> None:
    with pytest.raises(TooLarge, match="65 headers"):
        parse_headers(block(*(b"H%d: x" % number for number in range(65))))
    with pytest.raises(TooLarge, match="headers of"):
        parse_headers(block(b"H: " + b"x" * 17_000))
    assert parse_headers(block(*(b"H%d: x" % number for number in range(64)))).meta


def test_bounds_of_key_and_data_are_exact() -> None:
    check_fits(b"k" * 1024, b"x" * (8 << 20), b"")
    with pytest.raises(TooLarge, match="key"):
        check_fits(b"k" * 1025, b"", b"")
    with pytest.raises(TooLarge, match="data"):
        check_fits(b"k", b"x" * (8 << 20), b"m")


def test_statuses_are_read_with_their_figures() -> None:
    status = parse_status(
        b"NATS/1.0 409 Message Size Exceeds MaxBytes\r\nNats-Pending-Messages: 8\r\nNats-Pending-Bytes: 51\r\n\r\n"
    )
    assert (status.code, status.text) == (409, "Message Size Exceeds MaxBytes")
    assert (status.pending_messages, status.pending_bytes) == (8, 51)
    assert parse_status(b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 3\r\n\r\n").last_consumer_seq == 3
    assert parse_status(b"NATS/1.0 503\r\n\r\n").code == 503
    with pytest.raises(Unreadable):
        parse_status(b"")


def test_server_times_are_exact_to_the_nanosecond() -> None:
    assert server_time_ns("1970-01-01T00:00:01.000000002Z") == 1_000_000_002
    assert server_time_ns("1970-01-01T00:00:01.5Z") == 1_500_000_000
    assert server_time_ns("1970-01-01T00:00:01Z") == 1_000_000_000
    with pytest.raises(ValueError, match="not a UTC time"):
        server_time_ns("1970-01-01")
