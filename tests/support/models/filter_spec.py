"""A subscriber's filter of a topic, and its effect on a record; used by `tests.support.models.subscriber_view`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eddyline.core.records.record import Op
from eddyline.v1 import delivery_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable

    from eddyline.core.records.record import Record


@dataclass(frozen=True, slots=True)
class Wish:
    """Filters and options of one topic of a watch."""

    key_prefixes: tuple[bytes, ...] = ()
    tags: tuple[str, ...] = ()
    exclude_nodes: tuple[str, ...] = ()
    ignore_deletes: bool = False
    metadata_only: bool = False

    def shows(self, record: Record) -> bool:
        """Whether a record passes."""
        return (
            (not self.key_prefixes or (record.key or b"").startswith(self.key_prefixes))
            and (not self.tags or record.tag in self.tags)
            and (record.node is None or record.node not in self.exclude_nodes)
            and not (self.ignore_deletes and record.op in (Op.DELETE, Op.PURGE))
        )

    @property
    def by_key(self) -> bool:
        """True = a key is hidden whole or not at all, so that a map kept by what comes is the fold under the filter."""
        return not (self.tags or self.exclude_nodes or self.ignore_deletes)

    def seen(self, record: Record) -> Record:
        """A record as the filter delivers it: without data, its length takes the place of the data."""
        if not self.metadata_only or record.data is None:
            return record
        return record._replace(data=length(len(record.data)))

    def topic(self, name: str) -> pb.WatchTopic:
        """The request's topic, without a start."""
        return pb.WatchTopic(
            topic=name,
            key_prefixes=self.key_prefixes,
            tags=self.tags,
            exclude_nodes=self.exclude_nodes,
            ignore_deletes=self.ignore_deletes,
            metadata_only=self.metadata_only,
        )


def length(nbytes: int) -> bytes:
    """The stand-in for data that a filter leaves out."""
    return b"%d bytes" % nbytes


def fold_of(records: Iterable[Record], *, up_to_seq: int) -> dict[bytes, Record]:
    """The live records by key at a seq."""
    fold: dict[bytes, Record] = {}
    for record in records:
        if record.seq > up_to_seq:
            break
        assert record.key is not None
        fold.pop(record.key, None)
        if record.op == Op.PUT:
            fold[record.key] = record
    return fold
