"""The newest message of a key is removed and an older one left: the fold agrees with NATS, live and after a resume."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from eddyline.core.model.source import SourceDefinition
from eddyline.core.records.record import Op

if TYPE_CHECKING:
    from nats.js.kv import KeyValue

    from eddyline.ingest.role import IngestRole
    from tests.support.ingest.kit import BucketKit

LOOK_S: Final = 0.2


async def make_copied_bucket(kit: BucketKit) -> KeyValue:
    """Make a bucket of history 5 that allows MSG.DELETE, which buckets made by clients do not, and its source."""
    config = {
        "name": f"KV_{kit.bucket}",
        "subjects": [f"$KV.{kit.bucket}.>"],
        "max_msgs_per_subject": 5,
        "discard": "new",
        "allow_msg_ttl": True,
        "allow_rollup_hdrs": True,
    }
    answer = await kit.client.request(f"$JS.API.STREAM.CREATE.KV_{kit.bucket}", json.dumps(config).encode(), timeout=5)
    assert "error" not in json.loads(answer.data), answer.data
    await kit.make_source()
    return await kit.js.key_value(kit.bucket)


async def remove(kit: BucketKit, revision: int) -> None:
    """Delete one revision by MSG.DELETE; without `no_erase` the server syncs its disk, which takes seconds on a busy one."""
    body = json.dumps({"seq": revision, "no_erase": True}).encode()
    answer = await kit.client.request(f"$JS.API.STREAM.MSG.DELETE.KV_{kit.bucket}", body, timeout=10)
    assert json.loads(answer.data).get("success"), answer.data


async def shows(kit: BucketKit, expected: dict[str, tuple[bytes, int]]) -> None:
    """Wait until the fold has these values with these revisions, and the source has caught up."""

    async def holds() -> bool:
        entries = await kit.entries()
        comparison = {
            key.decode(): (entry.data, int.from_bytes(entry.version, "big")) for key, entry in entries.items()
        }
        return comparison == expected and (await kit.source()).report.state == "LIVE"

    await kit.until(holds)


async def verified(kit: BucketKit, role: IngestRole) -> None:
    """Verify that both sides are equal."""
    definition = SourceDefinition(kit.bucket, kit.bucket, kit.bucket)
    comparison = await role.comparer.compare(definition, name=role.new_compare_name(), settle_s=5, limit=10)
    assert comparison.is_right, comparison


async def test_fold_gets_the_older_value_after_the_newest_is_removed_from_a_live_bucket(kit: BucketKit) -> None:
    bucket = await make_copied_bucket(kit)
    async with kit.ingest(audit_interval_s=LOOK_S) as role:
        for value in (b"1", b"2", b"3"):
            await bucket.put("k", value)
        await kit.reaches(await bucket.put("other", b"x"))
        await kit.is_state("LIVE")
        await remove(kit, 3)
        await shows(kit, {"k": (b"2", 2), "other": (b"x", 4)})
        await remove(kit, 2)
        await shows(kit, {"k": (b"1", 1), "other": (b"x", 4)})
        await verified(kit, role)
        await kit.reaches(await bucket.put("k", b"4"))
        await shows(kit, {"k": (b"4", 5), "other": (b"x", 4)})
        await kit.is_state("LIVE")
    assert await kit.gaps() == []


async def test_removed_marker_shows_the_value_before_it_and_a_removed_value_the_marker(kit: BucketKit) -> None:
    bucket = await make_copied_bucket(kit)
    async with kit.ingest(audit_interval_s=LOOK_S) as role:
        await bucket.put("back", b"1")
        await bucket.delete("back")
        await bucket.put("gone", b"2")
        await bucket.delete("gone")
        await kit.reaches(await bucket.put("gone", b"3"))
        await kit.is_state("LIVE")
        await remove(kit, 2)
        await remove(kit, 5)
        await shows(kit, {"back": (b"1", 1)})
        await verified(kit, role)


async def test_messages_removed_while_ingest_was_away_are_found_by_the_first_audit(kit: BucketKit) -> None:
    bucket = await make_copied_bucket(kit)
    async with kit.ingest(audit_interval_s=LOOK_S):
        await bucket.put("k", b"1")
        await kit.reaches(await bucket.put("k", b"2"))
    await remove(kit, 2)
    async with kit.ingest(audit_interval_s=LOOK_S) as role:
        await shows(kit, {"k": (b"1", 1)})
        await verified(kit, role)


async def test_value_that_expires_alone_shows_the_one_before_it(kit: BucketKit) -> None:
    bucket = await make_copied_bucket(kit)
    async with kit.ingest(audit_interval_s=LOOK_S) as role:
        await bucket.put("k", b"1")
        short = await kit.js.publish(f"$KV.{kit.bucket}.k", b"2", headers={"Nats-TTL": "1s"})
        await kit.reaches(short.seq)
        await shows(kit, {"k": (b"1", 1)})
        await verified(kit, role)


async def test_removal_of_an_older_message_writes_nothing(kit: BucketKit) -> None:
    bucket = await make_copied_bucket(kit)
    async with kit.ingest(audit_interval_s=LOOK_S):
        await bucket.put("k", b"1")
        await kit.reaches(await bucket.put("k", b"2"))
        await kit.is_state("LIVE")
        await remove(kit, 1)
        await kit.reaches(await bucket.put("later", b"3"))
        await remove(kit, 3)
        await shows(kit, {"k": (b"2", 2)})
    assert [op for op, key in await kit.ops() if key == b"k"] == [Op.PUT, Op.PUT]
