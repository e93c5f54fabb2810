"""Verification of a large source: constant memory if it is equal, and nothing left if it is cancelled midway."""

from __future__ import annotations

import asyncio
import importlib
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from eddyline.core.model.source import SourceDefinition
from eddyline.ingest.verify.compare import VerifyProgress, VerifyStage
from eddyline.ingest.verify.verify import VerifyOptions
from tests.support.cluster.process_figures import peak_bytes, resident_bytes
from tests.support.ingest.fold_tampering import corrupt_row

if TYPE_CHECKING:
    from eddyline.ingest.role import IngestRole
    from tests.support.ingest.kit import SourceKit

GROWTH_BYTES_MAX: Final = 64 << 20
"""All keys of both sides, held at the same time, are 100 MB. Measured: 50 MB, on a busy machine."""


async def fill(sources: SourceKit, bucket_name: str, count: int) -> None:
    """Make a bucket of so many keys, copied by a source `s`."""
    await sources.make_copied_bucket(bucket_name, history=1)
    for number in range(count):
        await sources.client.publish(f"$KV.{bucket_name}.p{number % 2000}.k{number}", b"value %d" % number)
        if number % 1_000 == 0:
            await sources.client.flush()
    await sources.client.flush()


@pytest.mark.integration
async def test_two_hundred_thousand_keys_take_constant_memory(sources: SourceKit, bucket_name: str) -> None:
    count = 200_000
    await fill(sources, bucket_name, count)
    async with sources.ingest() as role:
        await sources.is_state("s", "LIVE", seconds=120)
        importlib.import_module("pyarrow.compute")  # 35 MiB, which the fold's first page would import
        before = resident_bytes()
        begin_peak()
        comparison = (await role.verifier.verify(await definition(sources), VerifyOptions("first", 1.0, 10))).comparison
        assert comparison.is_right
        assert (comparison.bucket_count, comparison.fold_count) == (count, count)
        for number in range(5):
            corrupt_row(sources.link, "t", b"p%d.k%d" % (number, number), None)
        comparison = (await role.verifier.verify(await definition(sources), VerifyOptions("second", 0.2, 3))).comparison
        assert (comparison.difference_count, len(comparison.differences)) == (5, 3)
        assert sum(one.difference_count for one in comparison.prefixes) == 5
        assert peak_bytes() - before < GROWTH_BYTES_MAX


def begin_peak() -> None:
    """Reset the peak of resident memory."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


@pytest.mark.parametrize("side", ["bucket", "fold"])
async def test_verification_cancelled_in_mid_read_leaves_nothing(
    sources: SourceKit, bucket_name: str, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eddyline.ingest.verify.compare.PROGRESS_INTERVAL_S", 0.0)
    await fill(sources, bucket_name, 10_000)
    async with sources.ingest() as role:
        await sources.is_state("s", "LIVE")
        await broken_off(sources, role, side)
        names = [info.name for info in await sources.js.consumers_info(f"KV_{bucket_name}")]
        assert not [name for name in names if name == "broken-1"]
        assert not sources.link._engine.fold._views  # type: ignore[attr-defined]
        result = await role.verifier.verify(await definition(sources), VerifyOptions("whole", 0.2, 3))
        assert result.comparison.is_right


async def broken_off(sources: SourceKit, role: IngestRole, side: str) -> None:
    """Cancel a verification while it reads."""
    source = await definition(sources)
    seen = asyncio.Event()

    async def verify() -> None:
        async with aclosing(role.verifier.steps(source, VerifyOptions("broken", 1.0, 1))) as steps:
            async for step in steps:
                if isinstance(step, VerifyProgress) and step.stage == VerifyStage.HASHES:
                    read = step.bucket_read if side == "bucket" else step.fold_read
                    if 0 < read < 10_000:
                        seen.set()
                        await asyncio.Event().wait()

    async with asyncio.TaskGroup() as group:
        task = group.create_task(verify())
        await seen.wait()
        if side == "fold":
            assert sources.link._engine.fold._views  # type: ignore[attr-defined]
        task.cancel()


async def definition(sources: SourceKit) -> SourceDefinition:
    return (await sources.link.get_source("s")).definition
