"""Any range of a topic with losses and deletes, by splits: what a read of the log gives, and sums that close."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest

from eddyline.core.model.topic import ConfigChange, Kind
from eddyline.core.records.match import Match, MatchField, MatchKind
from eddyline.core.records.record import Gap
from eddyline.spark.options.read import parse_options
from eddyline.spark.reader.batch import BatchReader
from eddyline.spark.reader.plan import ReadPartition
from eddyline.spark.schema import SCHEMA
from tests.support.spark.topics import append_all, plain_records, store_and_client

if TYPE_CHECKING:
    from pathlib import Path

    from eddyline.client.connect import Client

pytestmark = pytest.mark.spark

READS = 30


def read_here(address: str, **options: str) -> tuple[list[int], list[int]]:
    """Seqs of the records that tasks read, and of the gaps; every piece closes its account or fails."""
    parsed = parse_options({"store": address, "topic": "routes", "onGap": "rows", **options})
    reader = BatchReader(parsed, SCHEMA, None)
    seqs: list[int] = []
    gaps: list[int] = []
    for part in reader.partitions():
        assert isinstance(part, ReadPartition)
        for batch in reader.read(part):
            for seq, op in zip(batch.column("seq").to_pylist(), batch.column("op").to_pylist(), strict=True):
                (gaps if op == "GAP" else seqs).append(seq)
    return seqs, gaps


async def expected(client: Client, first: int, end: int, tags: set[str]) -> list[int]:
    items = [item async for item in client.read("routes", after=first - 1)]
    return [
        item.seq for item in items if not isinstance(item, Gap) and item.seq < end and (not tags or item.tag in tags)
    ]


@pytest.mark.parametrize("seed", range(3))
async def test_any_range_of_a_topic_with_losses_is_what_a_read_of_it_gives(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    async with store_and_client(tmp_path) as (address, client):
        await client.create_topic("routes", Kind.LOG)
        await append_all(client, "routes", plain_records(2_500), batch=500)
        for _ in range(READS):
            match draw.randrange(6):
                case 0:
                    await client.update_topic("routes", ConfigChange(cap_records=draw.randrange(500, 2_500)))
                case 1:
                    await client.delete_records("routes", before_seq=draw.randrange(1, 2_600))
                case 2:
                    end = draw.randrange(2, 3_000)
                    matched = Match(MatchField.TAG, MatchKind.EQ, draw.choice([b"even", b"odd"]))
                    info = await client.get_topic("routes")
                    await client.delete_records("routes", match=matched, before_seq=min(end, info.head_seq + 1))
                case _:
                    await append_all(client, "routes", plain_records(draw.randrange(1, 300)), batch=100)
            head = (await client.get_topic("routes")).head_seq
            first = draw.randrange(1, head + 2)
            end = draw.randrange(first, head + 2)
            tags = draw.choice([set(), set(), {"even"}])
            options = {"startingSeq": str(first), "endingSeq": str(max(1, end)), "maxRecordsPerPartition": "300"}
            if tags:
                options["tags"] = ",".join(sorted(tags))
            seqs, gaps = await asyncio.to_thread(read_here, address, **options)
            assert seqs == await expected(client, first, end, tags), options
            assert all(first <= seq < end for seq in gaps) and len(set(gaps)) == len(gaps)
