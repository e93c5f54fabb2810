"""A source as its users see it, whoever answers: the ingest that holds it, another one, or the store that keeps it.

State, reason, last revision and lag are of the holder's report, the position is the store's, which is never older than the
report: a position read first beside a report made later would show a source that is LIVE and lags.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from eddyline.core.codec.state import source_definition_to_pb, source_detail_to_pb
from eddyline.core.model.source import OF_ANOTHER
from eddyline.v1 import source_pb2

if TYPE_CHECKING:
    from eddyline.core.model.source import SourceInfo

_STATUS_PREFIX: Final = "SOURCE_STATUS_"
_PLACE: Final = Struct("<BqQ16s")
_SERIAL: Final = Struct("<Q")
_FORMATS: Final = (1, 2, 3)
"""Of a position (`eddyline.ingest.copy.position`). Each begins as the first one; from the second on the serial follows."""


class Place(NamedTuple):
    """What a stored position tells people: the revision up to which all is applied, and the last resync that is done."""

    revision: int
    resync_serial: int


def place_of(stored: bytes) -> Place | None:
    """The place that a stored position names; None = none yet, or one of a newer version: its holder says what is wrong."""
    if len(stored) < _PLACE.size or stored[0] not in _FORMATS:
        return None
    _, _, revision, _ = _PLACE.unpack_from(stored)
    has_serial = len(stored) >= _PLACE.size + _SERIAL.size
    return Place(revision, _SERIAL.unpack_from(stored, _PLACE.size)[0] if has_serial else 0)


def source_to_pb(info: SourceInfo) -> source_pb2.Source:
    """A source as its users see it."""
    report = info.report
    place = place_of(info.position)
    position_revision = place.revision if place is not None else 0
    # The position is never older than the report: the bucket had got at least so far.
    last_revision = max(report.last_revision, position_revision)
    lag = last_revision - position_revision
    if report.state in OF_ANOTHER:  # the position is not of the stream that is there, which lags, all of it
        last_revision = lag = report.lag
    return source_pb2.Source(
        definition=source_definition_to_pb(info.definition),
        status=status_to_pb(report.state),
        reason=report.reason,
        position_revision=position_revision,
        last_revision=last_revision,
        lag=lag,
        holder=info.holder,
        reported_ms=info.reported_ms,
        head_seq=info.head_seq,
        paused=info.orders.paused,
        # without a position there is nothing to bring in step: the first copy is of what there is
        resync_pending=place is not None and info.orders.resync_serial > place.resync_serial,
        detail=source_detail_to_pb(report.detail),
        epoch=info.epoch,
        gap_count=info.gap_count,
        gap_ms=info.gap_ms,
        changed_ms=info.changed_ms,
    )


def status_to_pb(state: str) -> source_pb2.SourceStatus.ValueType:
    """A source's state; "" and a newer one's are UNSPECIFIED."""
    name = _STATUS_PREFIX + state
    known = state and name in source_pb2.SourceStatus.keys()  # noqa: SIM118 - an enum wrapper is no mapping
    return source_pb2.SourceStatus.Value(name) if known else source_pb2.SOURCE_STATUS_UNSPECIFIED
