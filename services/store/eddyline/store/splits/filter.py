"""A split's filter applied to batches, and to footers and summaries of segments.

I1: a file or batch that a footer or summary rules out has no record that passes, and no gap record. Records of op GAP pass
every filter.
Cost: a share hashes keys one by one, about 0.2 us each; the other conditions are evaluated a column at a time.
Threading: pure functions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from xxhash import xxh3_64_intdigest

from eddyline.core.model.record_filter import matching
from eddyline.core.records.cells import cells_of
from eddyline.core.records.record import Op

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from eddyline.core.model.topic import TopicConfig
    from eddyline.core.records.batch import Batch
    from eddyline.store.splits.model import SplitFilter
    from eddyline.store.storage.segment.footer import BatchEntry, Footer, SegmentSummary


def of_topic(split_filter: SplitFilter, config: TopicConfig) -> SplitFilter:
    """Return the filter as it applies to a topic: nodes are excluded only if the topic's `dedupe_node` is set."""
    if split_filter.records.exclude_nodes and not config.dedupe_node:
        return replace(split_filter, records=replace(split_filter.records, exclude_nodes=()))
    return split_filter


def passing(batch: Batch, split_filter: SplitFilter) -> NDArray[np.int64] | None:
    """Return the indices of the records that pass, ascending; None = all pass."""
    matched = matching(batch, split_filter.records)
    if not (split_filter.by_source_time or split_filter.share_count) or batch.count == 0:
        return matched
    passes = np.ones(batch.count, dtype=np.bool_)
    if matched is not None:
        passes[:] = False
        passes[matched] = True
    if split_filter.by_source_time:
        passes &= _within(batch, split_filter)
    if split_filter.share_count:
        passes &= _of_share(batch, split_filter)
    if batch.has_gaps:
        passes |= batch.ops_array() == Op.GAP
    return None if passes.all() else np.flatnonzero(passes)


def may_hold(footer: Footer, split_filter: SplitFilter) -> bool:
    """Return whether a file may hold a record that passes, by its footer."""
    if footer.summary.gap_count:
        return True
    records = split_filter.records
    if split_filter.share_count and footer.min_key is None:
        return False
    if records.key_prefixes and not any(map(footer.may_hold_key_prefix, records.key_prefixes)):
        return False
    return not records.tags or any(map(footer.may_hold_tag, records.tags))


def may_hold_passing(part: SegmentSummary | BatchEntry, split_filter: SplitFilter) -> bool:
    """Return whether a file or a record batch may hold a record that passes, by its gap count and latest source time."""
    if part.gap_count or not split_filter.by_source_time:
        return True
    newest_ns = part.source_ts_ns_max
    if not newest_ns:
        return False
    return not split_filter.source_from_ns or newest_ns >= split_filter.source_from_ns


def _within(batch: Batch, split_filter: SplitFilter) -> NDArray[np.bool_]:
    if batch.source_ts_ns is None:
        return np.zeros(batch.count, dtype=np.bool_)
    times = np.frombuffer(batch.source_ts_ns, dtype="<i8")
    inside: NDArray[np.bool_] = times != 0
    if split_filter.source_from_ns:
        inside &= times >= split_filter.source_from_ns
    if split_filter.source_end_ns:
        inside &= times < split_filter.source_end_ns
    return inside


def _of_share(batch: Batch, split_filter: SplitFilter) -> NDArray[np.bool_]:
    if batch.key is None:
        return np.zeros(batch.count, dtype=np.bool_)
    count, share = split_filter.share_count, split_filter.share
    keys = cells_of(batch.key, batch.count)
    return np.array([key is not None and xxh3_64_intdigest(key) % count == share for key in keys], dtype=np.bool_)
