"""A NATS whose folder was replaced by an older copy, and written past the position before ingest connected: reported until a
resync is requested, whatever is left of the messages that would reveal it."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pytest
import pytest_asyncio

from eddyline.core.errors import ApplyPending
from eddyline.core.model.source import SourceDefinition
from eddyline.core.runtime.fs import RealFs
from eddyline.ingest.copy.position import NO_TIME, decode_position
from eddyline.store.artifacts.local_store import LocalArtifactStore
from tests.support.hang import HANG_S
from tests.support.ingest.kv import target
from tests.support.ingest.sources import SourceKit, source_kit
from tests.support.nats.server import NatsServer
from tests.support.store.artifacts import exported
from tests.support.store.real import real_store, threaded

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from nats.js.client import JetStreamContext

SAVED: Final = 7
"""Revision of the older copy."""
COPIED: Final = 10
"""Revision up to which the source has copied."""


class Scene:
    """A server of its own, its folder's older copy, and a source `s` of bucket `b` or of stream `b`."""

    def __init__(
        self, server: NatsServer, folder: Path, sources: SourceKit, kind: str, reconnected: asyncio.Event
    ) -> None:
        self.sources = sources
        self._reconnected = reconnected
        self.kind = kind
        self._server = server
        self._data, self._older = folder / "data", folder / "older"

    @property
    def js(self) -> JetStreamContext:
        return self.sources.js

    @property
    def definition(self) -> SourceDefinition:
        return (
            SourceDefinition("s", "t", bucket="b") if self.kind == "bucket" else SourceDefinition("s", "t", stream="b")
        )

    async def make(self, *, history: int = 64) -> None:
        if self.kind == "bucket":
            await self.js.add_stream(
                name="KV_b", subjects=["$KV.b.>"], max_msgs_per_subject=history, allow_direct=True, deny_delete=False
            )
        else:
            await self.js.add_stream(name="b", subjects=["b.>"])
        await self.sources.define(self.definition)

    async def write(self, *keys: str) -> int:
        """Write one message a key, its data the key; returns the last one's revision."""
        for key in keys:
            last = (await self.js.publish(("$KV.b." if self.kind == "bucket" else "b.") + key, key.encode())).seq
        return last

    async def remove(self, revision: int) -> None:
        await self.js.delete_msg("KV_b" if self.kind == "bucket" else "b", revision)

    async def copied(self, revision: int) -> None:
        """Copy up to `revision`, then stop."""
        async with self.sources.ingest():
            await self.sources.reaches("s", revision)
            await self.sources.is_state("s", "LIVE")

    async def save(self) -> None:
        """Keep a copy of the folder."""
        self.stop()
        shutil.copytree(self._data, self._older)
        await self.restart()

    async def roll_back(self) -> None:
        """Restore the folder."""
        self.stop()
        shutil.rmtree(self._data)
        shutil.copytree(self._older, self._data)
        await self.restart()

    def stop(self) -> None:
        self._reconnected.clear()
        self._server.stop()

    async def restart(self) -> None:
        """Start NATS again, for more writes."""
        self._server.start()
        async with asyncio.timeout(HANG_S):
            await self._reconnected.wait()

    async def copied_then_rolled_back(self, *, history: int = 64, last_key: str = "same") -> None:
        """Save `SAVED` messages, copy `COPIED`, and restore the older copy."""
        await self.make(history=history)
        await self.write(*(f"old{number}" for number in range(SAVED)))
        await self.save()
        assert await self.write(*(f"lost{number}" for number in range(COPIED - SAVED - 1)), last_key) == COPIED
        await self.copied(COPIED)
        await self.roll_back()

    async def written_again(self, *, last_key: str = "same") -> None:
        """Write other messages up to the position, and there the same one as before."""
        assert await self.write(*(f"new{number}" for number in range(COPIED - SAVED - 1)), last_key) == COPIED

    async def stands_ahead(self) -> None:
        """Check that a replica reports CURSOR_AHEAD, and copies nothing."""
        before = await self.sources.items("t")
        async with self.sources.ingest():
            await self.sources.is_state("s", "CURSOR_AHEAD")
            assert "`eddyline source resync s` takes what there is now" in await self.reason()
        assert await self.sources.items("t") == before

    async def reason(self) -> str:
        return (await self.sources.link.get_source("s")).report.reason

    async def equals_after_resync(self, keys: set[str]) -> None:
        """Request a resync, and check that it adopts the stream; then the source is LIVE, and stays so over a restart."""
        async with self.sources.ingest() as role:
            await self.sources.is_state("s", "CURSOR_AHEAD")
            role.ownership.apply_control(await self.sources.link.control_source("s", resync=True))
            await self.sources.is_state("s", "LIVE")
        async with self.sources.ingest():
            await self.sources.is_state("s", "LIVE")
            last = await self.write("after")
            await self.sources.reaches("s", last)
        rows = await self.sources.rows("t")
        assert (rows[-1].data, (await self.sources.gaps("t"))[0]) == (b"after", (COPIED + 1, 0))
        if self.kind == "bucket":
            assert set(await self.sources.fold("t")) == {key.encode() for key in (*keys, "after")}
        else:
            assert {(row.data or b"").decode() for row in rows} >= keys


OLD: Final = {f"old{number}" for number in range(SAVED)}
NEW: Final = {f"new{number}" for number in range(COPIED - SAVED - 1)}


@pytest_asyncio.fixture(params=["bucket", "stream"])
async def scene(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Scene]:
    server = NatsServer(tmp_path / "nats")
    server.start()
    try:
        reconnected = asyncio.Event()
        async with source_kit(server.url, tmp_path, reconnected=reconnected) as sources:
            yield Scene(server, tmp_path / "nats", sources, request.param, reconnected)
    finally:
        server.stop()


async def test_position_that_was_written_again_with_the_same_message_is_another_one(scene: Scene) -> None:
    await scene.copied_then_rolled_back()
    await scene.written_again()
    await scene.stands_ahead()
    assert f"message {COPIED} is of" in await scene.reason()
    await scene.write("more")
    await scene.stands_ahead()
    await scene.equals_after_resync(OLD | NEW | {"same", "more"})


async def test_message_of_the_position_is_gone_and_one_below_it_is_younger(scene: Scene) -> None:
    await scene.copied_then_rolled_back()
    await scene.written_again()
    await scene.write("more")
    await scene.remove(COPIED)
    await scene.stands_ahead()
    assert f"message {COPIED - 1} is of" in await scene.reason()


@pytest.mark.parametrize("scene", ["bucket"], indirect=True)
async def test_message_of_the_position_was_superseded_and_one_below_it_is_younger(scene: Scene) -> None:
    await scene.copied_then_rolled_back(history=1)
    await scene.written_again()
    await scene.write("same", *(f"new{number}" for number in range(1, COPIED - SAVED - 1)))
    await scene.stands_ahead()
    assert f"message {SAVED + 1} is of" in await scene.reason()
    await scene.equals_after_resync(OLD | NEW | {"same"})


@pytest.mark.parametrize("scene", ["bucket"], indirect=True)
async def test_position_without_a_sample_is_compared_by_its_time(scene: Scene) -> None:
    await scene.make()
    await scene.write(*(f"old{number}" for number in range(SAVED)))
    await scene.save()
    assert await scene.write(*(f"lost{number}" for number in range(COPIED - SAVED - 1)), "same") == COPIED
    await scene.copied(COPIED)
    await scene.js.purge_stream("KV_b", subject="$KV.b.old0")
    await scene.copied(COPIED)  # which writes a synthetic delete: no sample is left
    position = decode_position((await scene.sources.link.get_source("s")).position)
    assert position is not None
    assert (position.revision, position.checked) == (COPIED, False)
    assert position.time_ns != NO_TIME
    await scene.roll_back()
    await scene.written_again()
    await scene.write("more")
    await scene.stands_ahead()
    await scene.equals_after_resync(OLD | NEW | {"same", "more"})


@pytest.mark.parametrize("gone", [False, True])
async def test_stop_holds_over_restarts_though_the_stream_grew_past_the_position(scene: Scene, gone: bool) -> None:
    await scene.copied_then_rolled_back()
    await scene.stands_ahead()  # the stream ends before the position
    await scene.written_again()
    await scene.write("more")
    if gone:  # nothing is left that tells
        for revision in range(SAVED + 1, COPIED + 1):
            await scene.remove(revision)
    await scene.stands_ahead()
    await scene.sources.link.control_source("s", paused=True)
    async with scene.sources.ingest():
        await scene.sources.is_state("s", "PAUSED")
        await scene.sources.link.control_source("s", paused=False)
        await scene.sources.is_state("s", "CURSOR_AHEAD")
    await scene.stands_ahead()
    await scene.equals_after_resync(OLD | {"more"} | (set() if gone else NEW | {"same"}))


async def test_stop_is_reported_at_once_while_nats_is_away(scene: Scene) -> None:
    await scene.copied_then_rolled_back()
    await scene.stands_ahead()
    scene.stop()
    await scene.stands_ahead()
    await scene.restart()


@pytest.mark.parametrize("scene", ["bucket"], indirect=True)
async def test_artifact_from_before_the_rollback_is_left_alone(scene: Scene, tmp_path: Path) -> None:
    artifact_store = LocalArtifactStore(RealFs(), tmp_path / "artifacts", holder="")
    await scene.make()
    await scene.write(*(f"old{number}" for number in range(SAVED)))
    await scene.save()
    await scene.write(*(f"lost{number}" for number in range(COPIED - SAVED - 1)), "same")
    async with real_store(tmp_path / "one", workers=threaded, artifact_store=artifact_store) as link:
        first = SourceKit(scene.sources.url, scene.sources.client, link)
        await first.define(replace(scene.definition, topic="kv"))
        async with first.ingest():
            await first.reaches("s", COPIED)
            await first.is_state("s", "LIVE")
        await exported(link)
    await scene.roll_back()
    await scene.written_again()
    last = await scene.write("more")
    async with real_store(tmp_path / "two", workers=threaded, artifact_store=artifact_store) as link:
        second = SourceKit(scene.sources.url, scene.sources.client, link)
        await second.define(replace(scene.definition, topic="kv"))
        async with second.ingest():
            await second.reaches("s", last)
            await second.is_state("s", "LIVE")
        assert set(await second.fold("kv")) == {key.encode() for key in OLD | NEW | {"same", "more"}}


async def test_restart_of_nats_and_superseded_messages_are_no_rollback(scene: Scene) -> None:
    await scene.make(history=1)
    for _ in range(3):
        await scene.write("cold", "hot", "hot")
        await scene.copied(await scene.write("hot"))
        await scene.save()
        await scene.write("hot", "other")
        await scene.copied(await scene.write("hot"))
        shutil.rmtree(scene._older)


@pytest.mark.parametrize("scene", ["bucket"], indirect=True)
@pytest.mark.parametrize("state", ["CURSOR_AHEAD", "PAUSED"])
async def test_write_into_a_rolled_back_bucket_is_not_reported_as_applied(scene: Scene, state: str) -> None:
    await scene.copied_then_rolled_back()
    if state == "PAUSED":  # so that nobody looks at the stream
        await scene.sources.link.control_source("s", paused=True)
    async with scene.sources.ingest() as role:
        await scene.sources.is_state("s", state)
        await role.connection.wait_connected()
        with pytest.raises(ApplyPending, match=f"at revision {SAVED + 1}, .* of the stream that was there before"):
            await role.writer.put(target("b", wait=True, s=0.3), b"1")
        await scene.sources.link.control_source("s", paused=False, resync=True)
        await role.writer.put(target("b", wait=True, s=30), b"1")
    assert (await scene.sources.fold("t"))[b"k"] == b"1"


@pytest.mark.parametrize("scene", ["bucket"], indirect=True)
async def test_resync_after_a_rollback_leaves_no_version_that_the_stream_gives_again(scene: Scene) -> None:
    await scene.copied_then_rolled_back()
    await scene.stands_ahead()
    # The value that the fold has of revision 10, at revision 8; and a deletion of one that it has of 9.
    assert await scene.write("same") == SAVED + 1
    await scene.js.publish("$KV.b.lost1", b"", headers={"KV-Operation": "DEL"})
    await scene.equals_after_resync(OLD | {"same"})
    versions = {key: int.from_bytes(row.version, "big") for key, row in (await scene.sources.entries("t")).items()}
    assert versions[b"same"] == SAVED + 1
    assert max(versions.values()) == SAVED + 3
