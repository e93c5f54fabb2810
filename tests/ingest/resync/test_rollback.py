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
from tests.support.ingest.kit import SourceKit, source_kit
from tests.support.ingest.served import target
from tests.support.nats.server import NatsServer, running_nats
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


class RollbackCase:
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
            assert "`eddyline source resync s` copies its present state" in await self.reason()
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
async def case(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[RollbackCase]:
    with running_nats(tmp_path / "nats") as server:
        reconnected = asyncio.Event()
        async with source_kit(server.url, tmp_path, reconnected=reconnected) as sources:
            yield RollbackCase(server, tmp_path / "nats", sources, request.param, reconnected)


async def test_position_that_was_written_again_with_the_same_message_is_another_one(case: RollbackCase) -> None:
    await case.copied_then_rolled_back()
    await case.written_again()
    await case.stands_ahead()
    assert f"message {COPIED} is of" in await case.reason()
    await case.write("more")
    await case.stands_ahead()
    await case.equals_after_resync(OLD | NEW | {"same", "more"})


async def test_message_of_the_position_is_gone_and_one_below_it_is_younger(case: RollbackCase) -> None:
    await case.copied_then_rolled_back()
    await case.written_again()
    await case.write("more")
    await case.remove(COPIED)
    await case.stands_ahead()
    assert f"message {COPIED - 1} is of" in await case.reason()


@pytest.mark.parametrize("case", ["bucket"], indirect=True)
async def test_message_of_the_position_was_superseded_and_one_below_it_is_younger(case: RollbackCase) -> None:
    await case.copied_then_rolled_back(history=1)
    await case.written_again()
    await case.write("same", *(f"new{number}" for number in range(1, COPIED - SAVED - 1)))
    await case.stands_ahead()
    assert f"message {SAVED + 1} is of" in await case.reason()
    await case.equals_after_resync(OLD | NEW | {"same"})


@pytest.mark.parametrize("case", ["bucket"], indirect=True)
async def test_position_without_a_sample_is_compared_by_its_time(case: RollbackCase) -> None:
    await case.make()
    await case.write(*(f"old{number}" for number in range(SAVED)))
    await case.save()
    assert await case.write(*(f"lost{number}" for number in range(COPIED - SAVED - 1)), "same") == COPIED
    await case.copied(COPIED)
    await case.js.purge_stream("KV_b", subject="$KV.b.old0")
    await case.copied(COPIED)  # which writes a synthetic delete: no sample is left
    position = decode_position((await case.sources.link.get_source("s")).position)
    assert position is not None
    assert (position.revision, position.checked) == (COPIED, False)
    assert position.time_ns != NO_TIME
    await case.roll_back()
    await case.written_again()
    await case.write("more")
    await case.stands_ahead()
    await case.equals_after_resync(OLD | NEW | {"same", "more"})


@pytest.mark.parametrize("gone", [False, True])
async def test_stop_holds_over_restarts_though_the_stream_grew_past_the_position(
    case: RollbackCase, gone: bool
) -> None:
    await case.copied_then_rolled_back()
    await case.stands_ahead()  # the stream ends before the position
    await case.written_again()
    await case.write("more")
    if gone:  # nothing is left that tells
        for revision in range(SAVED + 1, COPIED + 1):
            await case.remove(revision)
    await case.stands_ahead()
    await case.sources.link.control_source("s", paused=True)
    async with case.sources.ingest():
        await case.sources.is_state("s", "PAUSED")
        await case.sources.link.control_source("s", paused=False)
        await case.sources.is_state("s", "CURSOR_AHEAD")
    await case.stands_ahead()
    await case.equals_after_resync(OLD | {"more"} | (set() if gone else NEW | {"same"}))


async def test_stop_is_reported_at_once_while_nats_is_away(case: RollbackCase) -> None:
    await case.copied_then_rolled_back()
    await case.stands_ahead()
    case.stop()
    await case.stands_ahead()
    await case.restart()


@pytest.mark.parametrize("case", ["bucket"], indirect=True)
async def test_artifact_from_before_the_rollback_is_left_alone(case: RollbackCase, tmp_path: Path) -> None:
    artifact_store = LocalArtifactStore(RealFs(), tmp_path / "artifacts", holder="")
    await case.make()
    await case.write(*(f"old{number}" for number in range(SAVED)))
    await case.save()
    await case.write(*(f"lost{number}" for number in range(COPIED - SAVED - 1)), "same")
    async with real_store(tmp_path / "one", workers=threaded, artifact_store=artifact_store) as link:
        first = SourceKit(case.sources.url, case.sources.client, link)
        await first.define(replace(case.definition, topic="kv"))
        async with first.ingest():
            await first.reaches("s", COPIED)
            await first.is_state("s", "LIVE")
        await exported(link)
    await case.roll_back()
    await case.written_again()
    last = await case.write("more")
    async with real_store(tmp_path / "two", workers=threaded, artifact_store=artifact_store) as link:
        second = SourceKit(case.sources.url, case.sources.client, link)
        await second.define(replace(case.definition, topic="kv"))
        async with second.ingest():
            await second.reaches("s", last)
            await second.is_state("s", "LIVE")
        assert set(await second.fold("kv")) == {key.encode() for key in OLD | NEW | {"same", "more"}}


async def test_restart_of_nats_and_superseded_messages_are_no_rollback(case: RollbackCase) -> None:
    await case.make(history=1)
    for _ in range(3):
        await case.write("cold", "hot", "hot")
        await case.copied(await case.write("hot"))
        await case.save()
        await case.write("hot", "other")
        await case.copied(await case.write("hot"))
        shutil.rmtree(case._older)


@pytest.mark.parametrize("case", ["bucket"], indirect=True)
@pytest.mark.parametrize("state", ["CURSOR_AHEAD", "PAUSED"])
async def test_write_into_a_rolled_back_bucket_is_not_reported_as_applied(case: RollbackCase, state: str) -> None:
    await case.copied_then_rolled_back()
    if state == "PAUSED":  # so that nobody looks at the stream
        await case.sources.link.control_source("s", paused=True)
    async with case.sources.ingest() as role:
        await case.sources.is_state("s", state)
        await role.connection.wait_connected()
        with pytest.raises(ApplyPending, match=f"at revision {SAVED + 1}, .* of the previous stream"):
            await role.writer.put(target("b", wait=True, s=0.3), b"1")
        await case.sources.link.control_source("s", paused=False, resync=True)
        await role.writer.put(target("b", wait=True, s=30), b"1")
    assert (await case.sources.fold("t"))[b"k"] == b"1"


@pytest.mark.parametrize("case", ["bucket"], indirect=True)
async def test_resync_after_a_rollback_leaves_no_version_that_the_stream_gives_again(case: RollbackCase) -> None:
    await case.copied_then_rolled_back()
    await case.stands_ahead()
    # The value that the fold has of revision 10, at revision 8; and a deletion of one that it has of 9.
    assert await case.write("same") == SAVED + 1
    await case.js.publish("$KV.b.lost1", b"", headers={"KV-Operation": "DEL"})
    await case.equals_after_resync(OLD | {"same"})
    versions = {key: int.from_bytes(row.version, "big") for key, row in (await case.sources.entries("t")).items()}
    assert versions[b"same"] == SAVED + 1
    assert max(versions.values()) == SAVED + 3
