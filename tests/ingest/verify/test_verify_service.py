"""VerifySource over gRPC, and `eddyline verify` against it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from itertools import groupby
from random import Random
from typing import TYPE_CHECKING

import grpc
import pytest
from nats.js.api import StreamConfig

from eddyline.client.admin.source_check import PrefixDrift, SourceProgress, SourceVerdict
from eddyline.client.admin.sources import Sources
from eddyline.client.admin.status import role_status
from eddyline.client.transport.call import Retry
from eddyline.core.errors import BucketNotFound, InvalidArgument, NotKv, SourceNotFound
from eddyline.core.model.source import SourceDefinition
from eddyline.core.runtime.clock import SystemClock, SystemHost
from eddyline.core.runtime.settings import CommonSettings
from eddyline.core.server.server import make_server
from eddyline.core.transport.channel import open_channel
from eddyline.ingest.role import SERVICES, add_services
from eddyline.v1 import cluster_pb2, cluster_pb2_grpc, source_pb2, source_pb2_grpc
from tests.support.command_line import command_at
from tests.support.ingest.fold_tampering import corrupt_row

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from eddyline.ingest.role import IngestRole
    from tests.support.ingest.kit import SourceKit

SETTLE = ("--settle-ms", "100")


@asynccontextmanager
async def served(sources: SourceKit) -> AsyncIterator[tuple[str, IngestRole]]:
    """A replica at an address."""
    async with sources.ingest() as role:
        server = make_server("127.0.0.1:0")
        add_services(server, role, link=sources.link, common=CommonSettings(), clock=SystemClock(), host=SystemHost())
        address = await server.start(*SERVICES)
        try:
            yield address, role
        finally:
            await server.stop(0)


@asynccontextmanager
async def client_of(address: str) -> AsyncIterator[tuple[Sources, grpc.aio.Channel]]:
    async with open_channel(address, own_connection=True) as channel:
        yield Sources(channel, retry=Retry(SystemClock(), random_source=Random(1))), channel


async def copied(sources: SourceKit, role: IngestRole, bucket_name: str, count: int) -> None:
    bucket = await sources.make_bucket(bucket_name, history=2)
    last = 0
    for number in range(count):
        last = await bucket.put(f"a.k{number:02}", b"%d" % number)
    await sources.define(SourceDefinition("s", "t", bucket_name))
    role.ownership.list_now()
    await sources.reaches("s", last)
    await sources.is_state("s", "LIVE")


async def test_progress_comes_before_the_verdict_and_the_status_counts(sources: SourceKit, bucket_name: str) -> None:
    async with served(sources) as (address, role), client_of(address) as (client, channel):
        await copied(sources, role, bucket_name, 20)
        corrupt_row(sources.link, "t", b"a.k03", b"x")
        steps = [step async for step in client.verify("s", settle_ms=100, repair=True)]
        progress, result = steps[:-1], steps[-1]
        assert all(isinstance(step, SourceProgress) for step in progress)
        # A stage that takes long is told again.
        stages = [stage for stage, _ in groupby(step.stage for step in progress if isinstance(step, SourceProgress))]
        assert stages == ["COUNTS", "HASHES", "KEYS", "REPAIR", "COUNTS", "HASHES"]
        assert isinstance(result, SourceVerdict)
        (difference,) = result.differences
        assert (difference.key, difference.kind) == (b"a.k03", "VALUE")
        assert result.prefixes == (PrefixDrift(b"a.", 20, 20, 1),)
        assert (result.difference_count, result.left_count, result.repaired) == (1, 0, True)
        assert result.is_right
        status = await cluster_pb2_grpc.ClusterServiceStub(channel).GetStatus(cluster_pb2.GetStatusRequest())
        assert (status.ingest.verification_count, status.ingest.drifted_key_count) == (1, 1)
        (source,) = status.ingest.sources
        assert source.drift_count == 0
        assert 0 <= source.verified_ms < 60_000
        figures = dict((await role_status(channel, "ingest", address)).figures)
        assert (figures["verification_count"], figures["drifted_key_count"]) == (1, 1)


async def test_source_that_was_never_verified_is_reported_so(sources: SourceKit, bucket_name: str) -> None:
    async with served(sources) as (address, role), client_of(address) as (_, channel):
        await copied(sources, role, bucket_name, 1)
        status = await cluster_pb2_grpc.ClusterServiceStub(channel).GetStatus(cluster_pb2.GetStatusRequest())
        assert [source.verified_ms for source in status.ingest.sources] == [-1]


async def test_bad_requests_are_refused_with_their_reason(sources: SourceKit, bucket_name: str) -> None:
    await sources.js.add_stream(StreamConfig(name=bucket_name, subjects=[f"{bucket_name}.>"]))
    async with served(sources) as (address, role), client_of(address) as (client, _):
        await role.connection.wait_connected()
        await sources.define(SourceDefinition("stream", "log", stream=bucket_name))
        await sources.define(SourceDefinition("bucket", "kv", f"{bucket_name}-no"))
        for error, name, settle_ms, limit in (
            (SourceNotFound, "nobody", 0, 0),
            (NotKv, "stream", 0, 0),
            (BucketNotFound, "bucket", 0, 0),
            (InvalidArgument, "bucket", 60_001, 0),
            (InvalidArgument, "bucket", 0, 10_001),
        ):
            with pytest.raises(error):
                _ = [step async for step in client.verify(name, settle_ms=settle_ms, limit=limit)]


@pytest.mark.parametrize("end", ["cancelled", "deadline"])
async def test_call_that_ends_early_leaves_no_consumer_and_its_turn(
    sources: SourceKit, bucket_name: str, end: str
) -> None:
    async with served(sources) as (address, role), client_of(address) as (client, channel):
        await copied(sources, role, bucket_name, 10)
        corrupt_row(sources.link, "t", b"a.k03", b"x")
        stub = source_pb2_grpc.SourceServiceStub(channel)
        request = source_pb2.VerifySourceRequest(source="s", settle_ms=60_000)
        call = stub.VerifySource(request, timeout=1.0 if end == "deadline" else 60.0)
        with pytest.raises((grpc.aio.AioRpcError, asyncio.CancelledError)):
            async for answer in call:
                if answer.progress.stage == source_pb2.VERIFY_STAGE_KEYS and end == "cancelled":
                    call.cancel()

        steps = [step async for step in client.verify("s", settle_ms=1)]
        assert isinstance(steps[-1], SourceVerdict)
        names = [info.name for info in await sources.js.consumers_info(f"KV_{bucket_name}")]
        assert len(names) == 1
        assert not names[0].startswith("eddyline-compare")


async def test_command_prints_each_finding_and_repairs(
    sources: SourceKit, bucket_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(sources) as (address, role):
        await copied(sources, role, bucket_name, 10)
        command = command_at("127.0.0.1:1", monkeypatch, ingest=address)
        code, output = await command.text("verify", "s", *SETTLE)
        assert (code, output) == (0, "s: equal (bucket 10 keys, fold 10 keys, at revision 10)\n")
        corrupt_row(sources.link, "t", b"a.k03", b"x")
        corrupt_row(sources.link, "t", b"a.k04", None)
        code, output = await command.text("verify", "s", *SETTLE)
        assert code == 1
        assert output.splitlines() == [
            "s: 2 keys differ: 1 only in the bucket, 1 with another value (bucket 10 keys, fold 9 keys, at revision 10)",
            "  differs             a.k03  bucket revision 4, fold revision 1",
            "  only in the bucket  a.k04  bucket revision 5",
            "s: below a.: 2 differ, bucket 10 of 10 keys, fold 9 of 9",
        ]
        code, objects = await command.run("verify", "s", "--repair", "--limit", "1", *SETTLE)
        assert code == 0
        assert objects[0] == {
            "source": "s",
            "kind": "VALUE",
            "key": "a.k03",
            "bucket_revision": 4,
            "fold_revision": 1,
            "left": False,
        }
        assert objects[-1] == {
            "source": "s",
            "equal": False,
            "bucket_count": 10,
            "fold_count": 9,
            "difference_count": 2,
            "missing_count": 1,
            "surplus_count": 0,
            "value_count": 1,
            "left_count": 0,
            "dry_run": False,
            "repaired": True,
            "repair_trouble": "",
            "unsettled_count": 0,
            "unexamined_count": 0,
            "unconfirmed_count": 0,
            "dead_letter_count": 0,
            "position_revision": 10,
            "source_status": "LIVE",
            "source_reason": "",
            "left_bucket_count": 10,
            "left_fold_count": 10,
        }
        assert len(objects) == 3
        corrupt_row(sources.link, "t", b"surplus", b"x")
        code, output = await command.text("verify", "s", "--repair", *SETTLE)
        assert (code, output.splitlines()) == (
            0,
            [
                "s: 1 key differed (bucket 10 keys, fold 11 keys, at revision 10); repaired: bucket 10 keys, fold 10 keys",
                "  only in the fold    surplus  fold revision 1",
                "s: keys without a prefix: 1 differ, bucket 0 of 10 keys, fold 1 of 11",
            ],
        )


async def test_a_dry_run_prints_the_repair_and_does_nothing(
    sources: SourceKit, bucket_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(sources) as (address, role):
        await copied(sources, role, bucket_name, 10)
        command = command_at("127.0.0.1:1", monkeypatch, ingest=address)
        dry = ("verify", "s", "--repair", "--dry-run", *SETTLE)
        code, output = await command.text(*dry)
        assert (code, output.rstrip().rpartition("; ")[2]) == (0, "a repair would change nothing")
        for key, value in ((b"a.k03", b"x"), (b"a.k04", None), (b"surplus", b"x")):
            corrupt_row(sources.link, "t", key, value)
        before = (await sources.link.get_source("s")).control
        for _ in range(2):  # the second one finds what the first one left
            code, output = await command.text(*dry, "--limit", "1")
            lines = output.splitlines()
            assert (code, lines[0].endswith("; a repair would write 2 keys and delete 1; nothing was changed")) == (
                1,
                True,
            )
            assert lines[1:3] == [
                "  differs             a.k03  bucket revision 4, fold revision 1",
                "  and 2 more: `--limit N` lists N of them",
            ]
        code, objects = await command.run(*dry)
        assert (code, objects[-1]["dry_run"], objects[-1]["left_count"]) == (1, True, 3)
        assert (await sources.link.get_source("s")).control == before


async def test_all_sources_are_verified_and_one_that_cannot_be_is_named(
    sources: SourceKit, bucket_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sources.js.add_stream(StreamConfig(name=bucket_name + "-log", subjects=[f"{bucket_name}.log.>"]))
    async with served(sources) as (address, role):
        await copied(sources, role, bucket_name, 3)
        await sources.define(SourceDefinition("a-missing", "x", bucket_name + "-no"))
        await sources.define(SourceDefinition("log", "log", stream=bucket_name + "-log"))
        command = command_at("127.0.0.1:1", monkeypatch, ingest=address)
        code, objects = await command.run("verify", "--all", *SETTLE)
        assert code == 1
        assert [(one["source"], one.get("reason"), one.get("skipped"), one.get("equal")) for one in objects] == [
            ("a-missing", "BUCKET_NOT_FOUND", None, None),
            ("log", None, True, None),
            ("s", None, None, True),
        ]
        await sources.link.delete_source("a-missing")
        code, output = await command.text("verify", "--all", *SETTLE)
        assert (code, output) == (0, "s: equal (bucket 3 keys, fold 3 keys, at revision 3)\n")


async def test_many_prefixes_are_cut_and_an_empty_list_is_reported(
    sources: SourceKit, bucket_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(sources) as (address, role):
        command = command_at("127.0.0.1:1", monkeypatch, ingest=address)
        code, output = await command.text("verify", "--all")
        assert (code, output.split(";")[0]) == (0, "no sources")
        await copied(sources, role, bucket_name, 1)
        for number in range(25):
            corrupt_row(sources.link, "t", b"p%02d.k" % number, b"x")
        code, output = await command.text("verify", "s", "--limit", "1", *SETTLE)
        assert code == 1
        lines = output.splitlines()
        assert lines[:3] == [
            "s: 25 keys differ: 25 only in the fold (bucket 1 key, fold 26 keys, at revision 1)",
            "  only in the fold    p00.k  fold revision 1",
            "  and 24 more: `--limit N` lists N of them",
        ]
        assert lines[3] == "s: below p00.: 1 differ, bucket 0 of 1 key, fold 1 of 26"
        assert lines[23:] == ["s: and 5 prefixes more"]
        code, output = await command.text("verify", "s", *SETTLE)
        assert output.count("only in the fold  ") == 10
        _, objects = await command.run("verify", "s", "--limit", "1", *SETTLE)
        assert len(objects) == 27
