"""One key of a KV topic written or deleted: appends of one record, by their own names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from eddyline.client.transport.call import CALL_TIMEOUT_S
from eddyline.client.transport.checked import check_bytes
from eddyline.core.model.topic import Kind
from eddyline.core.records.record import Op, Record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from eddyline.core.store_link.protocol import AppendResult


class _Appender(Protocol):
    async def append(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        idempotency_key: str = "",
        expected_versions: Mapping[bytes, bytes] | None = None,
        create: Kind | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
        traceparent: str = "",
    ) -> AppendResult: ...


class KeyWrites:
    """The writes of one key, for `Client`."""

    async def put(
        self: _Appender,
        topic: str,
        key: bytes,
        value: bytes,
        *,
        expected_version: bytes | None = None,
        create: bool = False,
        idempotency_key: str = "",
        timeout_s: float = CALL_TIMEOUT_S,
        traceparent: str = "",
    ) -> AppendResult:
        """Set a key's value in a KV topic; `append` does it for many at once, and says what it raises.

        `expected_version`: the version that the key must have (`Record.version`), b"" = not live; None = any. `create`
        makes a missing topic first. With an `idempotency_key` it is repeated while the store is away.

        Raises:
            EddylineError: as `append`, VersionMismatch. TypeError: key or value are not bytes.
        """
        check_bytes(key=key, value=value)
        return await self.append(
            topic,
            [Record(op=Op.PUT, key=key, data=value)],
            idempotency_key=idempotency_key,
            expected_versions=None if expected_version is None else {key: expected_version},
            create=Kind.KV if create else None,
            timeout_s=timeout_s,
            traceparent=traceparent,
        )

    async def delete(
        self: _Appender,
        topic: str,
        key: bytes,
        *,
        expected_version: bytes | None = None,
        idempotency_key: str = "",
        timeout_s: float = CALL_TIMEOUT_S,
        traceparent: str = "",
    ) -> AppendResult:
        """Delete a key of a KV topic, whether it is live or not; its history stays. The arguments are those of `put`.

        Raises:
            EddylineError: as `append`, VersionMismatch. TypeError: the key is not bytes.
        """
        check_bytes(key=key)
        return await self.append(
            topic,
            [Record(op=Op.DELETE, key=key)],
            idempotency_key=idempotency_key,
            expected_versions=None if expected_version is None else {key: expected_version},
            timeout_s=timeout_s,
            traceparent=traceparent,
        )
