"""A source as clients see it, with the same answer from the ingest that holds it, another ingest, or the store.

State, reason, last revision and lag come from the holder's report; the position comes from the store and is never older
than the report. A position read before a later report would show a source that is LIVE and lags.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from eddyline.core.codec.state import source_definition_to_pb, source_detail_to_pb
from eddyline.core.model.source import OTHER_STREAM_STATES
from eddyline.v1 import source_pb2

if TYPE_CHECKING:
    from eddyline.core.model.source import SourceInfo

_STATUS_PREFIX: Final = "SOURCE_STATUS_"
_POSITION: Final = Struct("<BqQ16s")
_SERIAL: Final = Struct("<Q")
_FORMATS: Final = (1, 2, 3)
"""Of a position (`eddyline.ingest.copy.position`).

All formats begin like the first; from the second on the serial follows.
"""


class PositionSummary(NamedTuple):
    """Readable part of a stored position: the revision up to which all is applied, and the last completed resync."""

    revision: int
    resync_serial: int


def summarize_position(stored: bytes) -> PositionSummary | None:
    """Decode a stored position; None = none yet, or one of a newer version, for which its holder reports the error."""
    if len(stored) < _POSITION.size or stored[0] not in _FORMATS:
        return None
    _, _, revision, _ = _POSITION.unpack_from(stored)
    has_serial = len(stored) >= _POSITION.size + _SERIAL.size
    return PositionSummary(revision, _SERIAL.unpack_from(stored, _POSITION.size)[0] if has_serial else 0)


def source_to_pb(info: SourceInfo) -> source_pb2.Source:
    """Encode a source as clients see it."""
    report = info.report
    progress = summarize_position(info.position)
    position_revision = progress.revision if progress is not None else 0
    # The position is never older than the report: the bucket had reached at least this revision.
    last_revision = max(report.last_revision, position_revision)
    lag = last_revision - position_revision
    if report.state in OTHER_STREAM_STATES:
        # The position is of another stream; the present stream lags by all of its length.
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
        paused=info.control.paused,
        # without a position no resync is pending: the first copy takes the whole stream
        resync_pending=progress is not None and info.control.resync_serial > progress.resync_serial,
        detail=source_detail_to_pb(report.detail),
        epoch=info.epoch,
        gap_count=info.gap_count,
        gap_ms=info.gap_ms,
        changed_ms=info.changed_ms,
    )


def status_to_pb(state: str) -> source_pb2.SourceStatus.ValueType:
    """Return a source's status; "" and a state of a newer version are UNSPECIFIED."""
    name = _STATUS_PREFIX + state
    is_known = state and name in source_pb2.SourceStatus.keys()  # noqa: SIM118 - an enum wrapper is no mapping
    return source_pb2.SourceStatus.Value(name) if is_known else source_pb2.SOURCE_STATUS_UNSPECIFIED
