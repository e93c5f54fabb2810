"""A NATS with few permissions and with limits: ingest stays within them, and a state's reason names the denied subject."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import pytest

from eddyline.core.errors import NatsUnreachable
from eddyline.core.model.source import SourceDefinition
from eddyline.ingest.kv.writer import WriteTarget
from tests.support.ingest.kit import source_kit
from tests.support.nats.server import running_nats

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.support.ingest.kit import SourceKit
    from tests.support.nats.server import NatsServer

BUCKET: Final = "certs"
API: Final = (
    "STREAM.INFO",
    "STREAM.MSG.GET",
    "CONSUMER.CREATE",
    "CONSUMER.MSG.NEXT",
    "CONSUMER.NAMES",
    "CONSUMER.DELETE",
)


def config(*, inbox: str = "_INBOX.>", without: str = "", limits: str = "") -> str:
    """Configuration of a server whose user `ingest` has these permissions."""
    allowed = [f'"$JS.API.{path}.>"' for path in API if path != without] + ['"$KV.>"']
    return (
        f"jetstream {{ {limits} }}\naccounts: {{ A: {{ jetstream: enabled, users: [\n"
        '{ user: "other", password: "other" }\n'
        '{ user: "ingest", password: "ingest", permissions: {\n'
        f'publish: {{ allow: [{", ".join(allowed)}] }}, subscribe: {{ allow: ["{inbox}"] }} }} }}\n] }} }}\n'
    )


@asynccontextmanager
async def locked(folder: Path, text: str) -> AsyncIterator[tuple[SourceKit, NatsServer]]:
    """A kit that writes as `other`, and ingest's user `ingest`."""
    with running_nats(folder / "nats", config=text) as server:
        async with source_kit(f"nats://other:other@{server.address}", folder) as sources:
            sources.url = f"nats://ingest:ingest@{server.address}"
            yield sources, server


async def filled(sources: SourceKit) -> int:
    """Make a bucket with a source; returns its last revision."""
    bucket = await sources.make_bucket(BUCKET, history=5)
    await sources.define(SourceDefinition(BUCKET, BUCKET, BUCKET))
    return await bucket.put("k", b"1")


async def reason_has(sources: SourceKit, words: str) -> None:
    """Wait until the source's reason contains a text, and nothing is copied."""

    async def holds() -> bool:
        report = (await sources.link.get_source(BUCKET)).report
        return report.state in ("CONNECTING", "RECOVERING") and words in report.reason

    await sources.until(holds)


async def test_a_user_of_an_inbox_of_its_own_copies_and_writes(tmp_path: Path) -> None:
    async with locked(tmp_path, config(inbox="_INBOX_eddy.>")) as (sources, _):
        last = await filled(sources)
        async with sources.ingest(nats_inbox_prefix="_INBOX_eddy") as role:
            await sources.reaches(BUCKET, last)
            await role.writer.put(WriteTarget(BUCKET, b"k", timeout_s=5, wait=True), b"2")
            assert await sources.fold(BUCKET) == {b"k": b"2"}


async def test_an_inbox_that_is_refused_is_named_with_the_setting(tmp_path: Path) -> None:
    async with locked(tmp_path, config(inbox="_INBOX_eddy.>")) as (sources, _):
        await filled(sources)
        async with sources.ingest() as role:
            await reason_has(
                sources, "NATS does not permit ingest to subscribe to _INBOX.>; set EDDYLINE_INGEST_NATS_INBOX_PREFIX"
            )
            with pytest.raises(NatsUnreachable, match="_INBOX_PREFIX") as refused:
                await role.writer.put(WriteTarget(BUCKET, b"k", timeout_s=5), b"2")
            assert "prefix" in refused.value.advice


@pytest.mark.parametrize("path", ["STREAM.INFO", "CONSUMER.CREATE", "CONSUMER.MSG.NEXT"])
async def test_a_permission_that_is_missing_is_named(tmp_path: Path, path: str) -> None:
    async with locked(tmp_path, config(without=path)) as (sources, _):
        await filled(sources)
        async with sources.ingest():
            await reason_has(sources, f"NATS does not permit ingest to publish to $JS.API.{path}.KV_{BUCKET}")


async def test_pulls_stay_within_the_bound_of_the_server(tmp_path: Path) -> None:
    async with locked(tmp_path, config(limits="limits { max_request_batch: 7 }")) as (sources, _):
        await filled(sources)
        js = sources.js
        for number in range(100):
            last = (await js.publish(f"$KV.{BUCKET}.k{number}", b"x")).seq
        async with sources.ingest() as role:
            await sources.reaches(BUCKET, last)
            await sources.is_state(BUCKET, "LIVE")
            held = role.ownership.held[BUCKET]
            assert held.progress.counts.consumers == 1
        assert len(await sources.fold(BUCKET)) == 101


async def test_a_stream_that_limits_the_inactivity_of_consumers_is_copied(sources: SourceKit, bucket_name: str) -> None:
    body = {
        "name": f"KV_{bucket_name}",
        "subjects": [f"$KV.{bucket_name}.>"],
        "max_msgs_per_subject": 5,
        "consumer_limits": {"inactive_threshold": 2_000_000_000, "max_ack_pending": 10},
    }
    answer = await sources.client.request(f"$JS.API.STREAM.CREATE.KV_{bucket_name}", json.dumps(body).encode())
    assert "error" not in json.loads(answer.data), answer.data
    last = (await sources.js.publish(f"$KV.{bucket_name}.k", b"1")).seq
    await sources.define(SourceDefinition("s", "t", bucket_name))
    async with sources.ingest() as role:
        await sources.reaches("s", last)
        await sources.is_state("s", "LIVE")
        definition = (await sources.link.get_source("s")).definition
        comparison = await role.comparer.compare(definition, name=role.new_compare_name(), settle_s=1, limit=1)
        assert comparison.is_right
