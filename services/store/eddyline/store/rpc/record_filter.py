"""Reading a reader's filter, from any call that has one: the same bounds.

Serves ReadRecords and StreamRecords.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from eddyline.core.codec import records as wire
from eddyline.core.errors import InvalidArgument

if TYPE_CHECKING:
    from eddyline.core.model.read import RecordFilter
    from eddyline.v1 import log_pb2

FILTER_CONDITIONS_MAX: Final = 1_000
"""Elsewhere unbounded. Each condition is compared with every record examined: this many prefixes times the 65 536 records of
one read are about a second of the loop, more would stop the store for everybody."""


def asked_filter(asked: log_pb2.RecordFilter) -> RecordFilter:
    """The filter of a request.

    Raises:
        InvalidArgument: too many conditions, or an op that is none of the contract's.
    """
    for field in ("key_prefixes", "tags", "exclude_nodes", "ops"):
        count = len(getattr(asked, field))
        if count > FILTER_CONDITIONS_MAX:
            raise InvalidArgument(
                f"at most {FILTER_CONDITIONS_MAX} of {field} in a filter, not {count}",
                field=f"filter.{field}",
                conditions=count,
                conditionsMax=FILTER_CONDITIONS_MAX,
            )
    return wire.filter_from_pb(asked)
