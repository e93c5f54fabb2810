"""Pieces as tasks: small ones together, large ones alone, all of them once and in order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eddyline.export.split.calls import Cluster
from eddyline.export.split.pieces import TopicSplit
from eddyline.spark.options.read import parse_options
from eddyline.spark.reader.fold import SHARE_RECORDS, shares_of
from eddyline.spark.reader.plan import JOIN_RECORDS, partitions_of

pytestmark = pytest.mark.spark

STORES = ("127.0.0.1:1", "127.0.0.1:2")


def piece(topic: str, count: int) -> TopicSplit:
    return TopicSplit(topic, 1, 1, max(1, count), record_count=count)


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3 * JOIN_RECORDS)), max_size=40), st.integers(1, 200_000)
)
def test_every_piece_is_in_one_task_and_tasks_of_several_stay_small(sizes: list[tuple[str, int]], most: int) -> None:
    pieces = [piece(topic, count) for topic, count in sizes]
    options = parse_options({"store": STORES[0], "topic": "a", "maxRecordsPerPartition": str(most)})
    tasks = partitions_of(pieces, Cluster(STORES, patience_s=1, stores=STORES), options)
    assert [held for task in tasks for held in task.pieces] == pieces
    assert all(task.stores == STORES for task in tasks)
    for task in tasks:
        assert len(task.pieces) == 1 or sum(held.record_count for held in task.pieces) <= min(most, JOIN_RECORDS)


def test_a_hundred_small_topics_next_to_a_large_one_take_few_tasks() -> None:
    pieces = [piece("large", 1_000_000)] * 3 + [piece(f"small-{number}", 50) for number in range(100)]
    options = parse_options({"store": STORES[0], "topic": "a"})
    tasks = partitions_of(pieces, Cluster(STORES, patience_s=1, stores=STORES), options)
    assert [len(task.pieces) for task in tasks] == [1, 1, 1, 100]


def test_a_fold_is_read_by_as_few_tasks_as_memory_allows() -> None:
    assert shares_of([piece("a", 10), piece("a", 20)]) == 1
    assert shares_of([piece("a", 2 * SHARE_RECORDS), piece("a", 1)]) == 3
