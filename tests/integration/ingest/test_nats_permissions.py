"""The NATS permissions of services/ingest/README.md, unchanged: they are sufficient, and each of them is used.

A real server whose user for ingest has these permissions and no others; another user of the account subscribes to
ingest's messages.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import nats
import pytest
from nats.js.api import KeyValueConfig, StreamConfig

from eddyline.client.admin.source_check import SourceVerdict
from eddyline.client.connect import connect
from eddyline.core.errors import BucketForbids
from tests.support.cluster.processes import free_address, logging_process, serving, store_process
from tests.support.nats.server import NatsServer, running_nats

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from nats.aio.msg import Msg
    from nats.js.client import JetStreamContext

    from eddyline.client.connect import Client

pytestmark = pytest.mark.integration

README: Final = Path(__file__).parents[3] / "services" / "ingest" / "README.md"
PATIENCE_S: Final = 30
BUCKET: Final = "certs"
STREAM: Final = "ORDERS"


def permissions() -> str:
    """The README's block."""
    (block,) = re.findall(r"\n(    permissions: \{\n.*?\n    \}\n)", README.read_text(encoding="utf-8"), re.DOTALL)
    return str(block)


def allowed(block: str) -> list[str]:
    """Subjects that it allows to publish to."""
    return re.findall(r'"(\$[^"]+)"', block)


def without(subject: str) -> str:
    """The block without one allowed subject."""
    assert subject in allowed(permissions())
    return permissions().replace(f'"{subject}"', '"nothing.of.ours"')


def matches(pattern: str, subject: str) -> bool:
    """NATS's own rule."""
    words, given = pattern.split("."), subject.split(".")
    if words[-1] == ">":
        return len(given) >= len(words) and matches(".".join(words[:-1]), ".".join(given[: len(words) - 1]))
    return len(words) == len(given) and all(word in ("*", one) for word, one in zip(words, given, strict=True))


class PublishedSubjects:
    """Messages published by ingest, received by another user of its account."""

    def __init__(self) -> None:
        self.subjects: set[str] = set()

    async def record(self, message: Msg) -> None:
        """Record one message."""
        self.subjects.add(message.subject)

    def unused(self, patterns: list[str]) -> list[str]:
        """Patterns that no message matched."""
        return [one for one in patterns if not any(matches(one, subject) for subject in self.subjects)]


@asynccontextmanager
async def permitted_server(folder: Path, block: str) -> AsyncIterator[NatsServer]:
    """A server whose user `ingest` has the block's permissions, and `other` all."""
    config = (
        "accounts: { A: { jetstream: enabled, users: [\n"
        '{ user: "other", password: "other" }\n'
        f'{{ user: "ingest", password: "ingest",\n{block}}}\n'
        "] } }\n"
    )
    with running_nats(folder, config=config) as server:
        yield server


@asynccontextmanager
async def ingest(server: NatsServer, roles: dict[str, str], log: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """An ingest as the user; its log is appended to a file. Stopped in order at the end."""
    address = roles["EDDYLINE_COMMON_INGEST_ADDRESSES"]
    settings = {"EDDYLINE_INGEST_LISTEN": address, "EDDYLINE_INGEST_NATS_URL": f"nats://ingest:ingest@{server.address}"}
    with log.open("ab") as file:
        async with logging_process("eddyline.ingest", stderr=file.fileno(), environment=roles | settings) as started:
            await serving(address)
            yield started


@asynccontextmanager
async def store(folder: Path) -> AsyncIterator[dict[str, str]]:
    """A store, with the addresses that roles and clients need."""
    ingests = free_address()
    async with store_process(folder / "store", EDDYLINE_COMMON_INGEST_ADDRESSES=ingests) as (_, address):
        yield {"EDDYLINE_COMMON_STORE_ADDRESSES": address, "EDDYLINE_COMMON_INGEST_ADDRESSES": ingests}


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Wait until a condition of other processes holds: there is no event."""
    async with asyncio.timeout(PATIENCE_S):
        while not await holds():  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.05)


async def copied(client: Client, source: str, revision: int) -> None:
    """Wait until a source is LIVE at a revision, with no resync pending."""

    async def holds() -> bool:
        source_info = await client.sources.get(source)
        return (
            source_info.status == "LIVE"
            and source_info.position_revision >= revision
            and not source_info.resync_pending
        )

    await until(holds)


async def write_and_copy(client: Client, js: JetStreamContext) -> None:
    """Copy both sources from their beginning, and make each kind of write."""
    kv = await js.create_key_value(KeyValueConfig(bucket=BUCKET, history=8))
    await js.add_stream(StreamConfig(name=STREAM, subjects=["orders.*"]))
    await kv.put("first", b"1")
    await kv.put("leaves", b"2")
    published = await js.publish("orders.new", b"3")
    await client.sources.create(BUCKET, bucket=BUCKET)
    await client.sources.create("orders", stream=STREAM)
    await copied(client, BUCKET, 2)
    await copied(client, "orders", published.seq)
    made = await client.kv.create(BUCKET, b"ours", b"4", wait_applied=True)
    await client.kv.update(BUCKET, b"ours", b"5", expected_revision=made.revision, wait_applied=True)
    await client.kv.put(BUCKET, b"gone", b"6")
    await client.kv.delete(BUCKET, b"gone")
    await client.kv.purge(BUCKET, b"ours", wait_applied=True)


async def resume_and_mend(client: Client, last: int, last_order: int) -> None:
    """Make the requests of a start after a kill, of both kinds of resync, and of a comparison."""
    await copied(client, BUCKET, last)
    await copied(client, "orders", last_order)
    assert await client.get(BUCKET, b"leaves") is None
    for source, revision in ((BUCKET, last), ("orders", last_order)):
        await client.sources.resync(source)
        await copied(client, source, revision)
    verdicts = [log_text async for log_text in client.sources.verify(BUCKET) if isinstance(log_text, SourceVerdict)]
    assert [verdict.difference_count for verdict in verdicts] == [0]


async def test_documented_permissions_are_enough_and_none_is_too_many(tmp_path: Path) -> None:
    block, heard, log = permissions(), PublishedSubjects(), tmp_path / "ingest.log"
    async with permitted_server(tmp_path / "nats", block) as server, store(tmp_path) as roles:
        other = await nats.connect(f"nats://other:other@{server.address}")
        try:
            js = other.jetstream()
            async with ingest(server, roles, log) as process:
                async with connect(roles["EDDYLINE_COMMON_STORE_ADDRESSES"]) as client:
                    await other.subscribe("$KV.>", cb=heard.record)
                    await write_and_copy(client, js)
                process.kill()
                await process.wait()
            await js.purge_stream(f"KV_{BUCKET}", subject=f"$KV.{BUCKET}.leaves")
            last = await (await js.key_value(BUCKET)).put("later", b"7")
            order = await js.publish("orders.new", b"8")
            await other.subscribe("$JS.API.>", cb=heard.record)
            await other.flush()
            async with ingest(server, roles, log), connect(roles["EDDYLINE_COMMON_STORE_ADDRESSES"]) as client:
                await resume_and_mend(client, last, order.seq)
            await other.drain()
        finally:
            await other.close()
    log_text = log.read_text(encoding="utf-8")
    assert "ermissions" not in log_text, log_text
    assert heard.unused(allowed(block)) == []


async def test_a_bucket_may_be_copied_without_the_permission_to_write_into_it(tmp_path: Path) -> None:
    block = without(f"$KV.{BUCKET}.>")
    async with permitted_server(tmp_path / "nats", block) as server, store(tmp_path) as roles:
        other = await nats.connect(f"nats://other:other@{server.address}")
        try:
            kv = await other.jetstream().create_key_value(KeyValueConfig(bucket=BUCKET, history=8))
            last = await kv.put("first", b"1")
            async with (
                ingest(server, roles, tmp_path / "ingest.log"),
                connect(roles["EDDYLINE_COMMON_STORE_ADDRESSES"]) as client,
            ):
                await client.sources.create(BUCKET, bucket=BUCKET)
                await copied(client, BUCKET, last)
                with pytest.raises(BucketForbids):
                    await client.kv.put(BUCKET, b"ours", b"2")
        finally:
            await other.close()
    log_text = (tmp_path / "ingest.log").read_text(encoding="utf-8")
    # nats-py passes on the server's words in lower case
    assert f'permissions violation for publish to \\"$kv.{BUCKET}.ours' in log_text, log_text


@pytest.mark.parametrize("missing", [f"$JS.API.CONSUMER.CREATE.KV_{BUCKET}.>", f"$JS.API.STREAM.INFO.KV_{BUCKET}"])
async def test_source_that_lacks_a_permission_is_recovering_and_the_log_has_the_subject(
    tmp_path: Path, missing: str
) -> None:
    block, log = without(missing), tmp_path / "ingest.log"
    async with permitted_server(tmp_path / "nats", block) as server, store(tmp_path) as roles:
        other = await nats.connect(f"nats://other:other@{server.address}")
        try:
            await other.jetstream().create_key_value(KeyValueConfig(bucket=BUCKET, history=8))
            sources = tmp_path / "sources.toml"
            sources.write_text(f'[[source]]\nname = "{BUCKET}"\nbucket = "{BUCKET}"\ntopic = "{BUCKET}"\n')
            roles |= {"EDDYLINE_INGEST_SOURCES_FILE": str(sources)}
            async with ingest(server, roles, log), connect(roles["EDDYLINE_COMMON_STORE_ADDRESSES"]) as client:

                async def is_recovering() -> bool:
                    return (await client.sources.get(BUCKET)).status == "RECOVERING"

                await until(is_recovering)
        finally:
            await other.close()
    subject = missing.removesuffix(">").lower()
    log_text = log.read_text(encoding="utf-8")
    assert f'permissions violation for publish to \\"{subject}' in log_text, log_text
