"""Publish of one message into a bucket's stream, with its outcome: stored, refused, or unknown.

I1: a failure that is not `WriteUnknown` is a definite refusal: the server refused, or nothing was sent to it.
I2: no message is sent that is larger than the server accepts: it would close the connection, which all sources share.

nats-py buffers publishes while it reconnects and sends them later, so a connection that breaks after the hand-over leaves
the outcome unknown; one that is down before it is a refusal.
Threading: event loop.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final, NoReturn

from nats.errors import (
    BadSubjectError,
    ConnectionClosedError,
    ConnectionDrainingError,
    MaxPayloadError,
    NoRespondersError,
    OutboundBufferLimitError,
)
from nats.errors import Error as NatsError

from eddyline.core.errors import (
    BucketForbids,
    BucketFull,
    BucketNotFound,
    InvalidArgument,
    NatsUnreachable,
    ValueTooLarge,
    WriteUnknown,
)
from eddyline.ingest.nats.request import request

if TYPE_CHECKING:
    from nats.aio.client import Client

    from eddyline.ingest.nats.bucket import BucketInfo
    from eddyline.ingest.nats.connection import Connection
    from eddyline.ingest.nats.jetstream import JetStream

    Json = dict[str, object]

_WRONG_LAST: Final = frozenset((10071, 10164))
_TOO_LARGE: Final = 10054
_STORE_FAILED: Final = 10077
"""Its description decides: a maximum of the bucket's, or a defect of the server's disk."""
_NO_ROOM: Final = frozenset((10002, 10023, 10028, 10047))
_FORBIDDEN: Final = {10166: "allow_msg_ttl", 10109: "sealed", 10111: "allow_rollup_hdrs"}
_TTL_INVALID: Final = 10165
_OTHER_STREAM: Final = frozenset((10059, 10060))
_NOT_SENT: Final = (BadSubjectError, ConnectionClosedError, ConnectionDrainingError, OutboundBufferLimitError)
_LAST: Final = re.compile(r"wrong last sequence: (\d{1,20})")


class WrongLast(Exception):
    """The subject's last message is not the expected one; `revision` = its revision, if the server's answer has it."""

    def __init__(self, revision: int | None) -> None:
        super().__init__(f"last is {revision}")
        self.revision = revision


class Publisher:
    """Publishes into buckets over the role's one connection."""

    def __init__(self, connection: Connection, jetstream: JetStream) -> None:
        self._connection = connection
        self._jetstream = jetstream

    def fits(self, bucket: BucketInfo, value: bytes, headers: dict[str, str]) -> bool:
        """True = the message exceeds neither the bucket's nor the server's bound."""
        return all(len(value) + header_bytes(headers) <= most for _, most in _bounds(bucket, self._connection.client))

    async def publish(
        self, bucket: BucketInfo, subject: str, value: bytes, headers: dict[str, str], *, timeout_s: float
    ) -> int:
        """Store one message, and return its revision.

        Raises:
            WrongLast: the headers expected another last message. ValueTooLarge, BucketFull, BucketForbids,
                InvalidArgument (the time to live), BucketNotFound, NatsUnreachable: refused. WriteUnknown: the outcome is
                unknown.
        """
        client = self._connection.client
        _check_size(bucket, client, value, headers)
        if self._jetstream.domain:
            subject = f"{self._jetstream.prefix}.{subject}"
        try:
            with self._connection.publishing(subject) as publishing:
                answer = await request(client, publishing, value, headers=headers, timeout_s=timeout_s)
        except NoRespondersError:
            await self._jetstream.stream(bucket.stream.bucket)
            raise NatsUnreachable("no NATS server accepts writes into the bucket now; nothing was written") from None
        except _NOT_SENT as error:
            raise NatsUnreachable(f"not connected to NATS; nothing was written: {error}") from error
        except MaxPayloadError as error:
            message = f"a value of {len(value)} bytes exceeds max_payload of the NATS server"
            raise ValueTooLarge(message, valueBytes=len(value), setBy="server") from error
        except (NatsError, OSError, TimeoutError) as error:
            _raise_unknown(str(error) or type(error).__name__)
        if publishing.denied:
            name = bucket.stream.bucket
            raise BucketForbids(
                f"NATS does not permit ingest to write this key of bucket {name}", bucket=name, setting="permissions"
            )
        return _revision_of(bucket, answer, value)


def header_bytes(headers: dict[str, str]) -> int:
    """Bytes of a header block on the wire."""
    return len("NATS/1.0\r\n") + sum(len(name) + len(value) + 4 for name, value in headers.items()) + 2


def _revision_of(bucket: BucketInfo, answer: bytes | None, value: bytes) -> int:
    if answer is None:
        _raise_unknown("the connection broke")
    try:
        answer_fields = json.loads(answer)
    except ValueError:
        answer_fields = None
    if not isinstance(answer_fields, dict):
        _raise_unknown("the answer is not an acknowledgement")
    refusal = answer_fields.get("error")
    if isinstance(refusal, dict):
        _raise_refusal(bucket, refusal, value)
    revision = answer_fields.get("seq")
    if not isinstance(revision, int) or revision < 1:
        _raise_unknown("the acknowledgement has no revision")
    return revision


def _raise_unknown(why: str) -> NoReturn:
    raise WriteUnknown(f"NATS did not acknowledge the write, which may be stored: {why}")


def _bounds(bucket: BucketInfo, client: Client) -> list[tuple[str, int]]:
    """Bounds of a message in bytes, by origin."""
    bounds = (("bucket", bucket.message_bytes_max), ("server", client.max_payload))
    return [(set_by, bytes_max) for set_by, bytes_max in bounds if bytes_max]


def _check_size(bucket: BucketInfo, client: Client, value: bytes, headers: dict[str, str]) -> None:
    overhead = header_bytes(headers)
    for set_by, bytes_max in _bounds(bucket, client):
        if len(value) + overhead > bytes_max:
            raise ValueTooLarge(
                f"a value of {len(value)} bytes; the {set_by}'s maximum for this key is {max(bytes_max - overhead, 0)}",
                valueBytes=len(value),
                valueBytesMax=max(bytes_max - overhead, 0),
                setBy=set_by,
            )


def _raise_refusal(bucket: BucketInfo, refusal: Json, value: bytes) -> NoReturn:
    name, code, description = bucket.stream.bucket, refusal.get("err_code", 0), str(refusal.get("description", ""))
    message = f"NATS refused a write into bucket {name}: {description} ({code})"
    if code in _WRONG_LAST:
        match = _LAST.search(description)
        raise WrongLast(int(match[1]) if match else None)
    if code == _TOO_LARGE:
        raise ValueTooLarge(message, valueBytes=len(value), setBy="bucket")
    if code in _NO_ROOM or (code == _STORE_FAILED and "maximum" in description):
        raise BucketFull(message, bucket=name)
    if code == _STORE_FAILED:
        raise WriteUnknown(message)
    if code in _FORBIDDEN:
        raise BucketForbids(message, bucket=name, setting=_FORBIDDEN[int(str(code))])
    if code == _TTL_INVALID:
        raise InvalidArgument(message, field="ttl_ms")
    if code in _OTHER_STREAM:
        raise BucketNotFound(message, bucket=name)
    raise NatsUnreachable(message, errCode=str(code))
