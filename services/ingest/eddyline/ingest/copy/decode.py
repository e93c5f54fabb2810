"""Decoder of a JetStream message's bytes into the parts of a record: place, op, meta.

    ack subject   $JS.ACK.<stream>.<consumer>.<delivered>.<revision>.<consumer seq>.<time ns>.<pending>
                  $JS.ACK.<domain>.<account>.<stream>.<consumer>.<the same five>[.<token>]     with a domain, or newer
    header block  NATS/1.0[ <status>[ <words>]] CRLF (name ":" value CRLF)* CRLF

`KV-Operation` DEL and PURGE, and a server's `Nats-Marker-Reason` (MaxAge, Purge = PURGE; Remove = DELETE), make an
operation; without them a message of zero bytes is a value. Meta is every other header but `Nats-*`, in order, repeats
kept, and `Nats-Marker-Reason`, by which readers distinguish an expiry (MaxAge) from a purge. Of a stream without a bucket
every message is an event: no header makes an operation, and `Nats-Msg-Id` is kept, by which readers recognize a message
that was published twice.
Source: NATS ADR-4, ADR-8, ADR-15, ADR-43, ADR-48.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from eddyline.core.records.meta import encode_meta
from eddyline.core.records.record import (
    KEY_BYTES_MAX,
    MARKER_REASON,
    META_BYTES_MAX,
    META_ENTRIES_MAX,
    SOURCE_DATA_META_BYTES_MAX,
    MetaEntry,
    Op,
)

_OPERATION: Final = b"KV-Operation"
_MARKER: Final = MARKER_REASON.encode()
_OPERATIONS: Final = {b"DEL": Op.DELETE, b"PURGE": Op.PURGE}
_MARKERS: Final = {b"MaxAge": Op.PURGE, b"Purge": Op.PURGE, b"Remove": Op.DELETE}
_HEAD: Final = b"NATS/1.0"
_ACK: Final = b"$JS.ACK."
_SHORT: Final = 9
_LONG: Final = 11


class Delivery(NamedTuple):
    """Place of a message: revision, sequence in the consumer, the server's time, messages behind it then."""

    revision: int
    consumer_seq: int
    time_ns: int
    pending: int


class Meaning(NamedTuple):
    """Op and encoded meta, from a message's headers."""

    op: Op
    meta: bytes


class StatusMessage(NamedTuple):
    """A status message of the server. `pending_messages` and `pending_bytes` = remainder of the pull that it ends."""

    code: int
    text: str
    pending_messages: int
    pending_bytes: int
    last_consumer_seq: int


class Unreadable(Exception):
    """Bytes from the server that follow no known grammar."""


class TooLarge(Exception):
    """A message that does not fit into a record; the text names the bound that it exceeds."""


VALUE: Final = Meaning(Op.PUT, b"")
"""A bucket's message without headers."""
EVENT: Final = Meaning(Op.APPEND, b"")
"""A stream's message without headers."""
_MESSAGE_ID: Final = b"Nats-Msg-Id"


def parse_ack(reply: bytes) -> Delivery:
    """Parse a message's place from its acknowledgement subject.

    Raises:
        Unreadable.
    """
    if reply.count(b".") == _SHORT - 1 and reply.startswith(_ACK):
        try:
            _, revision, consumer_seq, time_ns, pending = reply.rsplit(b".", 4)
            return Delivery(int(revision), int(consumer_seq), int(time_ns), int(pending))
        except ValueError as error:
            raise Unreadable(f"not an acknowledgement subject: {reply!r}") from error
    tokens = reply.split(b".")
    offset = 5 if len(tokens) == _SHORT else 7
    if len(tokens) < offset + 4 or (offset == 7 and len(tokens) < _LONG) or tokens[1] != b"ACK":
        raise Unreadable(f"not an acknowledgement subject: {reply!r}")
    try:
        return Delivery._make(map(int, tokens[offset : offset + 4]))
    except ValueError as error:
        raise Unreadable(f"not an acknowledgement subject: {reply!r}") from error


def parse_event_headers(block: bytes) -> Meaning:
    """Parse the meta of a stream's message with a header block.

    Raises:
        TooLarge: more meta than a record may have.
    """
    entries = [
        _meta_entry(name, value)
        for name, value in _lines(block)
        if not name.startswith(b"Nats-") or name == _MESSAGE_ID
    ]
    return Meaning(Op.APPEND, _meta(block, entries))


def parse_headers(block: bytes) -> Meaning:
    """Parse op and meta of a bucket's message with a header block.

    Raises:
        TooLarge: more meta than a record may have.
    """
    op = Op.PUT
    entries: list[MetaEntry] = []
    for name, value in _lines(block):
        if name == _OPERATION:
            op = _OPERATIONS.get(value, op)
        elif name.startswith(b"Nats-"):
            if name == _MARKER:
                op = _MARKERS.get(value, op)
                entries.append(_meta_entry(name, value))
        else:
            entries.append(_meta_entry(name, value))
    return Meaning(op, _meta(block, entries))


def _meta_entry(name: bytes, value: bytes) -> MetaEntry:
    # Names are UTF-8 in a record; other bytes become escapes.
    return MetaEntry(name.decode(errors="backslashreplace"), value)


def _meta(block: bytes, entries: list[MetaEntry]) -> bytes:
    if not entries:
        return b""
    if len(entries) > META_ENTRIES_MAX:
        raise TooLarge(f"{len(entries)} headers; the maximum is {META_ENTRIES_MAX}")
    if len(block) > META_BYTES_MAX and sum(len(name) + len(value) for name, value in entries) > META_BYTES_MAX:
        raise TooLarge(f"headers of {len(block)} bytes; the maximum is {META_BYTES_MAX}")
    meta = encode_meta(entries)
    if len(meta) > META_BYTES_MAX:
        raise TooLarge(f"headers of {len(meta)} bytes; the maximum is {META_BYTES_MAX}")
    return meta


def parse_status(block: bytes) -> StatusMessage:
    """Parse a status message.

    Raises:
        Unreadable.
    """
    first, _, _ = block.partition(b"\r\n")
    _, _, rest = first.partition(b" ")
    code, _, text = rest.strip().partition(b" ")
    pending_messages = pending_bytes = last_consumer_seq = 0
    try:
        for name, value in _lines(block):
            if name == b"Nats-Pending-Messages":
                pending_messages = int(value)
            elif name == b"Nats-Pending-Bytes":
                pending_bytes = int(value)
            elif name == b"Nats-Last-Consumer":
                last_consumer_seq = int(value)
        return StatusMessage(
            int(code), text.decode(errors="replace"), pending_messages, pending_bytes, last_consumer_seq
        )
    except ValueError as error:
        raise Unreadable(f"not a status message: {block[:100]!r}") from error


def check_fits(key: bytes, data: bytes, meta: bytes) -> None:
    """Refuse a message that no record of a source can hold.

    Raises:
        TooLarge.
    """
    if len(key) > KEY_BYTES_MAX:
        raise TooLarge(f"a key of {len(key)} bytes; the maximum is {KEY_BYTES_MAX}")
    if len(data) + len(meta) > SOURCE_DATA_META_BYTES_MAX:
        raise TooLarge(
            f"data and headers of {len(data) + len(meta)} bytes; the maximum is {SOURCE_DATA_META_BYTES_MAX}"
        )


def _lines(block: bytes) -> list[tuple[bytes, bytes]]:
    """Names and values; a line without a colon is skipped."""
    if not block.startswith(_HEAD):
        return []
    pairs = []
    for line in block.split(b"\r\n")[1:]:
        name, colon, value = line.partition(b":")
        if colon:
            pairs.append((name.strip(), value.strip()))
    return pairs
