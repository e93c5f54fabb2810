"""The newest message of a key is removed and an older one left: the fold agrees with NATS, live and after a resume."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from eddyline.core.model.source import SourceDefinition
from eddyline.core.records.record import Op

if TYPE_CHECKING:
    from eddyline.ingest.role import IngestRole
    from tests.support.ingest.buckets import Kit

LOOK_S: Final = 0.2


async def make_bucket(at: Kit) -> None:
    """Make a bucket of history 5 that allows MSG.DELETE, which buckets made by clients do not."""
    config = {
        "name": f"KV_{at.bucket}",
        "subjects": [f"$KV.{at.bucket}.>"],
        "max_msgs_per_subject": 5,
        "discard": "new",
        "allow_msg_ttl": True,
        "allow_rollup_hdrs": True,
    }
    answer = await at.client.request(f"$JS.API.STREAM.CREATE.KV_{at.bucket}", json.dumps(config).encode(), timeout=5)
    assert "error" not in json.loads(answer.data), answer.data


async def remove(at: Kit, revision: int) -> None:
    """Delete one revision by MSG.DELETE; without `no_erase` the server syncs its disk, which takes seconds on a busy one."""
    body = json.dumps({"seq": revision, "no_erase": True}).encode()
    answer = await at.client.request(f"$JS.API.STREAM.MSG.DELETE.KV_{at.bucket}", body, timeout=10)
    assert json.loads(answer.data).get("success"), answer.data


async def shows(at: Kit, expected: dict[str, tuple[bytes, int]]) -> None:
    """Wait until the fold has these values with these revisions, and the source has caught up."""

    async def holds() -> bool:
        entries = await at.entries()
        found = {key.decode(): (entry.data, int.from_bytes(entry.version, "big")) for key, entry in entries.items()}
        return found == expected and (await at.source()).report.state == "LIVE"

    await at.until(holds)


async def verified(at: Kit, role: IngestRole) -> None:
    """Verify that both sides are equal."""
    definition = SourceDefinition(at.bucket, at.bucket, at.bucket)
    found = await role.comparer.compare(definition, name=role.new_compare_name(), settle_s=5, limit=10)
    assert found.is_right, found


async def test_fold_gets_the_older_value_after_the_newest_is_removed_from_a_live_bucket(at: Kit) -> None:
    await make_bucket(at)
    bucket = await at.js.key_value(at.bucket)
    await at.make_source()
    async with at.ingest(audit_interval_s=LOOK_S) as role:
        for value in (b"1", b"2", b"3"):
            await bucket.put("k", value)
        await at.reaches(await bucket.put("other", b"x"))
        await at.is_state("LIVE")
        await remove(at, 3)
        await shows(at, {"k": (b"2", 2), "other": (b"x", 4)})
        await remove(at, 2)
        await shows(at, {"k": (b"1", 1), "other": (b"x", 4)})
        await verified(at, role)
        await at.reaches(await bucket.put("k", b"4"))
        await shows(at, {"k": (b"4", 5), "other": (b"x", 4)})
        await at.is_state("LIVE")
    assert await at.gaps() == []


async def test_removed_marker_shows_the_value_before_it_and_a_removed_value_the_marker(at: Kit) -> None:
    await make_bucket(at)
    bucket = await at.js.key_value(at.bucket)
    await at.make_source()
    async with at.ingest(audit_interval_s=LOOK_S) as role:
        await bucket.put("back", b"1")
        await bucket.delete("back")
        await bucket.put("gone", b"2")
        await bucket.delete("gone")
        await at.reaches(await bucket.put("gone", b"3"))
        await at.is_state("LIVE")
        await remove(at, 2)
        await remove(at, 5)
        await shows(at, {"back": (b"1", 1)})
        await verified(at, role)


async def test_messages_removed_while_ingest_was_away_are_found_by_the_first_audit(at: Kit) -> None:
    await make_bucket(at)
    bucket = await at.js.key_value(at.bucket)
    await at.make_source()
    async with at.ingest(audit_interval_s=LOOK_S):
        await bucket.put("k", b"1")
        await at.reaches(await bucket.put("k", b"2"))
    await remove(at, 2)
    async with at.ingest(audit_interval_s=LOOK_S) as role:
        await shows(at, {"k": (b"1", 1)})
        await verified(at, role)


async def test_value_that_expires_alone_shows_the_one_before_it(at: Kit) -> None:
    await make_bucket(at)
    bucket = await at.js.key_value(at.bucket)
    await at.make_source()
    async with at.ingest(audit_interval_s=LOOK_S) as role:
        await bucket.put("k", b"1")
        short = await at.js.publish(f"$KV.{at.bucket}.k", b"2", headers={"Nats-TTL": "1s"})
        await at.reaches(short.seq)
        await shows(at, {"k": (b"1", 1)})
        await verified(at, role)


async def test_removal_of_an_older_message_writes_nothing(at: Kit) -> None:
    await make_bucket(at)
    bucket = await at.js.key_value(at.bucket)
    await at.make_source()
    async with at.ingest(audit_interval_s=LOOK_S):
        await bucket.put("k", b"1")
        await at.reaches(await bucket.put("k", b"2"))
        await at.is_state("LIVE")
        await remove(at, 1)
        await at.reaches(await bucket.put("later", b"3"))
        await remove(at, 3)
        await shows(at, {"k": (b"2", 2)})
    assert [op for op, key in await at.ops() if key == b"k"] == [Op.PUT, Op.PUT]
