"""Random writes of a few keys by two replicas, each compared with a model of compare-and-set."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import pytest

from eddyline.core.errors import KeyExists, RevisionMismatch
from tests.support.ingest.served import target

if TYPE_CHECKING:
    from eddyline.ingest.kv.writer import KvWriter
    from tests.support.ingest.kit import BucketKit

KEYS = (b"a", b"b/c", b"d.e")
ROUNDS = 150


@dataclass
class Model:
    """Model of the bucket: the last revision of each key, and its live values."""

    last: int
    revisions: dict[bytes, int]
    values: dict[bytes, bytes]

    def record(self, key: bytes, value: bytes | None) -> int:
        """Record a write, and return its revision. None = a marker."""
        self.last += 1
        self.revisions[key] = self.last
        if value is None:
            self.values.pop(key, None)
        else:
            self.values[key] = value
        return self.last


async def step(kit: BucketKit, writer: KvWriter, model: Model, rng: Random, number: int) -> None:
    """Make one write and compare its outcome with the model's."""
    key, value = rng.choice(KEYS), b"%d" % number if rng.random() < 0.9 else b""
    place = target(kit.bucket, key, wait=rng.random() < 0.2)
    current = model.revisions.get(key, 0)
    expected = current if rng.random() < 0.6 else rng.randint(1, model.last + 2)
    match rng.choice(("put", "create", "update", "delete", "purge")):
        case "put":
            assert (await writer.put(place, value)).revision == model.record(key, value)
        case "create" if key in model.values:
            with pytest.raises(KeyExists) as exists:
                await writer.create(place, value)
            assert exists.value.revision == current
        case "create":
            assert (await writer.create(place, value)).revision == model.record(key, value)
        case "update" if expected in {0, current}:
            if current:
                written = await writer.update(place, value, expected_revision=current)
                assert written.revision == model.record(key, value)
        case "update":
            with pytest.raises(RevisionMismatch) as mismatch:
                await writer.update(place, value, expected_revision=expected)
            assert mismatch.value.revision == current
        case removal:
            remove = writer.delete if removal == "delete" else writer.purge
            if expected in {0, current}:
                assert (await remove(place, expected_revision=expected)).revision == model.record(key, None)
            else:
                with pytest.raises(RevisionMismatch) as mismatch:
                    await remove(place, expected_revision=expected)
                assert mismatch.value.revision == current


@pytest.mark.parametrize("seed", range(3))
async def test_each_write_ends_as_compare_and_set_demands(kit: BucketKit, seed: int) -> None:
    bucket = await kit.make_copied_bucket(history=rng_history(seed))
    rng, model = Random(seed), Model(0, {}, {})
    async with kit.ingest() as one, kit.ingest(holder="two") as two:
        await one.connection.wait_connected()
        await two.connection.wait_connected()
        for number in range(ROUNDS):
            await step(kit, rng.choice((one, two)).writer, model, rng, number)
        await kit.reaches(model.last)
    assert await kit.fold() == {key.decode(): value for key, value in model.values.items()}
    live = {}
    for key in model.values:
        entry = await bucket.get(key.decode())
        live[key] = (entry.value or b"", entry.revision)
    assert live == {key: (value, model.revisions[key]) for key, value in model.values.items()}


def rng_history(seed: int) -> int:
    """Yield buckets of no, some and much history."""
    return (1, 5, 64)[seed % 3]
