"""Validation of an append before it gets its seqs: ops, keys, positions, heads, versions, caps.

Every check raises before a seq is assigned, so every refusal is definite. Pure: no waiting, no I/O.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eddyline.core.errors import (
    EpochMismatch,
    FoldLost,
    HeadMismatch,
    InvalidArgument,
    InvalidOp,
    KeyRequired,
    NotKv,
    RecordTooLarge,
    TopicFull,
    TopicHasSource,
    VersionMismatch,
)
from eddyline.core.model.topic import Discard, Kind, check_name
from eddyline.core.records.column import has_empty_cell
from eddyline.core.records.record import POSITION_BYTES_MAX, Op, effective_version

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from eddyline.core.records.batch import Batch
    from eddyline.core.records.record import Record
    from eddyline.store.log.append import AppendRequest
    from eddyline.store.log.topic import Topic

_KV_OPS = frozenset((Op.PUT, Op.DELETE, Op.PURGE))
_SOURCE_OPS = _KV_OPS | {Op.GAP}
_LOG_SOURCE_OPS = frozenset((Op.APPEND, Op.GAP))


def check_request(topic: Topic, request: AppendRequest) -> None:
    """Check an append by the topic's identity alone.

    Raises:
        EpochMismatch, TopicHasSource, InvalidArgument, InvalidOp, KeyRequired, NotKv, FoldLost.
    """
    check_epoch(topic.name, topic.id, request.epoch)
    check_author(topic, request)
    if request.expected_versions:
        if topic.kind is not Kind.KV:
            raise NotKv(f"topic {topic.name} has no fold, so no expected versions", topic=topic.name)
        check_fold(topic)
    writer = request.writer
    if writer is not None:
        if not request.source:  # a source's name was checked when it was made
            check_name(writer.writer, "writer")
        if max(len(writer.previous), len(writer.new)) > POSITION_BYTES_MAX:
            raise InvalidArgument(
                f"a position has at most {POSITION_BYTES_MAX} bytes",
                field="writer",
                positionBytesMax=POSITION_BYTES_MAX,
            )
        if not writer.new:
            raise InvalidArgument("a writer's new position is missing", field="writer.new")
        if request.source and not writer.fence:
            raise InvalidArgument("the fence of the caller's lease is missing", field="fence")
    if request.batch.count == 0 and not request.source:
        raise InvalidArgument("an append needs at least one record", field="batch")
    check_ops_for_kind(topic.kind, request.batch, source=request.source)


def check_new(topic: Topic, request: AppendRequest) -> None:
    """Check an append to a topic that it would create: `topic` is that topic with id 0.

    Raises:
        the errors of the append itself, and of an empty topic's state.
    """
    check_request(topic, request)
    check_versions(request.expected_versions, [None] * len(request.expected_versions), ())
    check_head(topic, request.expected_head_seq)
    check_caps(topic, request.batch.count, request.batch.record_bytes)
    if request.writer is not None:
        topic.writers.check(request.writer, leased=False)


def check_epoch(name: str, epoch: int, expected: int) -> None:
    """Raise EpochMismatch if an epoch is expected and the topic has another one; `epoch` 0 = there is no such topic."""
    if expected and expected != epoch:
        actual = f"topic {name} has epoch {epoch}" if epoch else f"there is no topic {name}"
        raise EpochMismatch(
            f"{actual}, the request has epoch {expected}", topic=name, epoch=epoch, expectedEpoch=expected
        )


def check_fold(topic: Topic) -> None:
    """Raise FoldLost if the topic's fold is lost."""
    if topic.fold_lost:
        raise FoldLost(
            f"the fold of topic {topic.name} is damaged, and its base and log cannot restore it", topic=topic.name
        )


def check_author(topic: Topic, request: AppendRequest) -> None:
    """Raise TopicHasSource if the topic is written by a source and the append is not its own."""
    if topic.source and not request.source:
        raise TopicHasSource(
            f"topic {topic.name} may be written only by its source {topic.source}",
            topic=topic.name,
            source=topic.source,
        )


def check_ops_for_kind(kind: Kind, batch: Batch, *, source: bool) -> None:
    """Check ops and keys by the topic's kind.

    Raises:
        InvalidOp: the topic or the caller cannot use this op.
        KeyRequired: a record of a KV topic without key, or with an empty one, which no read of a fold can name.
    """
    if batch.count == 0:
        return
    if kind is Kind.LOG:
        if batch.ops is not None and not (source and set(bytes(batch.ops)) <= _LOG_SOURCE_OPS):
            raise InvalidOp("records of a LOG topic must have op APPEND", field="op")
        return
    allowed = _SOURCE_OPS if source else _KV_OPS
    ops_used = {Op.APPEND} if batch.ops is None else set(bytes(batch.ops))
    if not ops_used <= allowed:
        named = ", ".join(sorted(Op(op).name for op in ops_used - allowed))
        raise InvalidOp(f"records of a KV topic must have op PUT, DELETE or PURGE, not {named}", field="op", ops=named)
    if Op.GAP in ops_used:
        ops = batch.ops_array()
        keyed = batch.select((ops != Op.GAP).nonzero()[0])
        if keyed.count == 0:
            return
        batch = keyed
    if batch.key is None or batch.key.validity is not None or has_empty_cell(batch.key):
        raise KeyRequired("every record of a KV topic must have a key of at least 1 byte", field="key")


def check_head(topic: Topic, expected_head_seq: int | None) -> None:
    """Raise HeadMismatch if the staged head is another seq."""
    if expected_head_seq is not None and expected_head_seq != topic.staged_seq:
        raise HeadMismatch(
            f"the head of topic {topic.name} is {topic.staged_seq}, not {expected_head_seq}",
            topic=topic.name,
            headSeq=topic.staged_seq,
            expectedHeadSeq=expected_head_seq,
        )


def check_caps(topic: Topic, record_count: int, record_bytes: int) -> None:
    """Check an append by the topic's caps.

    Raises:
        RecordTooLarge: it is larger than a cap on its own, permanently. TopicFull: the topic refuses appends over its cap.
    """
    config = topic.config
    if not config.cap_records and not config.cap_bytes:
        return
    for cap, size, what in (
        (config.cap_records, record_count, "records"),
        (config.cap_bytes, record_bytes, "bytes"),
    ):
        if cap and size > cap:
            raise RecordTooLarge(
                f"the append has {size} {what}, the topic's cap is {cap}",
                field="batch",
                capRecords=config.cap_records,
                capBytes=config.cap_bytes,
            )
    if config.discard is not Discard.REJECT:
        return
    over_records = config.cap_records and topic.staged_count + record_count > config.cap_records
    over_bytes = config.cap_bytes and topic.staged_bytes + record_bytes > config.cap_bytes
    if over_records or over_bytes:
        raise TopicFull(
            f"topic {topic.name} is full, and discard is REJECT: {topic.staged_count} records, {topic.staged_bytes} bytes",
            topic=topic.name,
            capRecords=config.cap_records,
            capBytes=config.cap_bytes,
            headSeq=topic.staged_seq,
            earliestSeq=topic.earliest_seq,
        )


def check_versions(
    expected: Sequence[tuple[bytes, bytes]], stored: Sequence[Record | None], staged: Iterable[Batch]
) -> None:
    """Check `expected_versions` against the fold's entries and all batches staged since they were read, in order.

    Raises:
        VersionMismatch: with the first key that differs and its version.
    """
    versions = {
        key: b"" if entry is None else effective_version(entry.version, entry.seq)
        for (key, _), entry in zip(expected, stored, strict=True)
    }
    for batch in staged:
        for record in batch.to_rows():
            if record.key is not None and record.key in versions:
                live = record.op == Op.PUT
                versions[record.key] = effective_version(record.version, record.seq) if live else b""
    for key, version in expected:
        if versions[key] != version:
            raise VersionMismatch(
                f"key {key[:64]!r} {'is not live' if not versions[key] else 'has another version'}",
                key=key.hex(),
                version=versions[key].hex(),
                expectedVersion=version.hex(),
            )
