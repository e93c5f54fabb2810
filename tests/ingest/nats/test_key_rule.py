"""Subjects to keys: every way in which NATS fills a bucket's stream is copied whole, or stops with the subjects named."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from xxhash import xxh32_hexdigest

from eddyline.core.errors import BucketForbids, ForeignSubjects
from eddyline.core.model.source import SourceDefinition
from eddyline.ingest.kv.writer import WriteTarget
from eddyline.ingest.nats.key_rule import own_rule, possible_rules

if TYPE_CHECKING:
    from nats.js.kv import KeyValue

    from eddyline.ingest.role import IngestRole
    from tests.support.ingest.kit import BucketKit

LOOK_SOON_S = 0.2
Config = dict[str, object]


@pytest.fixture(autouse=True)
def short_name(kit: BucketKit) -> None:
    """Return a short name: a long reason is cut."""
    kit.bucket = f"r{xxh32_hexdigest(kit.bucket.encode())}"


async def configure(kit: BucketKit, name: str, config: Config, *, verb: str = "CREATE") -> None:
    """Make or change the stream of a bucket."""
    body = {"name": f"KV_{name}", "max_msgs_per_subject": 5} | config
    answer = await kit.client.request(f"$JS.API.STREAM.{verb}.KV_{name}", json.dumps(body).encode(), timeout=5)
    assert "error" not in json.loads(answer.data), answer.data


async def filled(kit: BucketKit, bucket: str) -> KeyValue:
    """Make a bucket of two keys, one of which was deleted."""
    made = await kit.js.create_key_value(bucket=bucket, history=5)
    await made.put("a", b"0")
    await made.put("a", b"1")
    await made.put("b.c", b"2")
    await made.put("gone", b"3")
    await made.delete("gone")
    return made


async def difference_count(kit: BucketKit, role: IngestRole) -> int:
    """Number of keys that differ by `verify`."""
    definition = SourceDefinition(kit.bucket, kit.bucket, kit.bucket)
    comparison = await role.comparer.compare(definition, name=role.new_compare_name(), settle_s=0.2, limit=10)
    assert comparison.bucket_count == 2
    return comparison.difference_count


def of_origin(origin: str, dest: str = "") -> Config:
    """Origin of a mirror or a source, with its transform if it has one."""
    moves = [{"src": f"$KV.{origin}.>", "dest": dest}] if dest else []
    return {"name": f"KV_{origin}"} | ({"subject_transforms": moves} if moves else {})


def configs(bucket: str) -> dict[str, Config]:
    """Ways to fill a bucket from another one."""
    origin = f"{bucket}_o"
    own = f"$KV.{bucket}.>"
    return {
        "mirror": {"mirror": of_origin(origin)},
        "mirror that is transformed to its own subjects": {"mirror": of_origin(origin, own)},
        "mirror that is transformed to other subjects": {"mirror": of_origin(origin, f"copies.of.{bucket}.>")},
        "mirror of a mirror": {"mirror": of_origin(f"{bucket}_m")},
        "source that is transformed": {"subjects": [own], "sources": [of_origin(origin, own)]},
    }


@pytest.mark.parametrize("way", list(configs("b")))
async def test_what_the_stream_holds_is_copied(kit: BucketKit, way: str) -> None:
    await filled(kit, f"{kit.bucket}_o")
    if way == "mirror of a mirror":
        await configure(kit, f"{kit.bucket}_m", {"mirror": of_origin(f"{kit.bucket}_o")})
    await configure(kit, kit.bucket, configs(kit.bucket)[way])
    await kit.make_source()
    async with kit.ingest() as role:
        await kit.reaches(5)
        await kit.is_state("LIVE")
        assert await kit.fold() == {"a": b"1", "b.c": b"2"}
        assert await difference_count(kit, role) == 0


async def test_a_bucket_whose_stream_moves_its_writes_is_copied_and_not_written(kit: BucketKit) -> None:
    await configure(
        kit,
        kit.bucket,
        {
            "subjects": [f"$KV.{kit.bucket}.>"],
            "subject_transform": {"src": f"$KV.{kit.bucket}.>", "dest": f"$KV.{kit.bucket}_z.>"},
        },
    )
    await kit.js.publish(f"$KV.{kit.bucket}.a", b"1")
    await kit.js.publish(f"$KV.{kit.bucket}.b.c", b"2")
    await kit.make_source()
    async with kit.ingest() as role:
        await kit.reaches(2)
        assert await kit.fold() == {"a": b"1", "b.c": b"2"}
        assert await difference_count(kit, role) == 0
        with pytest.raises(BucketForbids) as forbids:
            await role.writer.put(WriteTarget(kit.bucket, b"k", timeout_s=5), b"1")
        assert forbids.value.metadata["setting"] == "subject_transform"


async def test_a_mirror_that_was_empty_is_copied_by_what_comes(kit: BucketKit) -> None:
    origin = await kit.js.create_key_value(bucket=f"{kit.bucket}_o", history=5)
    await configure(kit, f"{kit.bucket}_m", {"mirror": of_origin(f"{kit.bucket}_o")})
    await configure(kit, kit.bucket, {"mirror": of_origin(f"{kit.bucket}_m")})
    await kit.make_source()
    async with kit.ingest():
        await kit.is_state("LIVE")
        await kit.reaches(await origin.put("a", b"1"))
        assert await kit.fold() == {"a": b"1"}


def foreign(bucket: str) -> dict[str, Config]:
    """Buckets with subjects that are none of their keys."""
    own = f"$KV.{bucket}.>"
    return {
        "source that is not transformed": {"subjects": [own], "sources": [of_origin(f"{bucket}_o")]},
        "further subjects": {"subjects": [own, f"other.{bucket}.>"]},
    }


@pytest.mark.parametrize("way", list(foreign("b")))
async def test_subjects_that_are_no_keys_stop_the_source_by_name_until_they_are_gone(
    kit: BucketKit, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eddyline.ingest.sources.source_run.RETRY_S_MAX", LOOK_SOON_S)
    await filled(kit, f"{kit.bucket}_o")
    await configure(kit, kit.bucket, foreign(kit.bucket)[way])
    subject = f"$KV.{kit.bucket}_o.a" if "source" in way else f"other.{kit.bucket}.x"
    if "source" not in way:
        await kit.js.publish(subject, b"x")
    await kit.js.publish(f"$KV.{kit.bucket}.k", b"1")
    stream = f"KV_{kit.bucket}"
    least = 6 if "source" in way else 2
    while (await kit.js.stream_info(stream)).state.messages < least:
        await kit.client.flush()
    await kit.make_source()
    async with kit.ingest() as role:
        await kit.is_state("SOURCE_LOST")
        reason = (await kit.source()).report.reason
        assert subject in reason, reason
        assert f"keys are under $KV.{kit.bucket}.> (the bucket's own subjects)" in reason
        definition = SourceDefinition(kit.bucket, kit.bucket, kit.bucket)
        with pytest.raises(ForeignSubjects) as refused:
            await role.comparer.compare(definition, name=role.new_compare_name(), settle_s=0.2, limit=10)
        assert subject in refused.value.message
        for gone in (f"$KV.{kit.bucket}_o.>", f"other.{kit.bucket}.>"):
            await kit.js.purge_stream(stream, subject=gone)
        await kit.is_state("LIVE", seconds=20)
        assert await kit.fold() == {"k": b"1"}


async def test_a_subject_that_comes_to_a_live_source_stops_it(kit: BucketKit) -> None:
    bucket = await kit.make_copied_bucket()
    async with kit.ingest(audit_interval_s=LOOK_SOON_S):
        await kit.reaches(await bucket.put("k", b"1"))
        await kit.is_state("LIVE")
        before = (await kit.js.stream_info(f"KV_{kit.bucket}")).config
        own = [f"$KV.{kit.bucket}.>", f"other.{kit.bucket}.>"]
        await kit.js.update_stream(replace(before, subjects=own))
        await kit.js.publish(f"other.{kit.bucket}.x", b"x")
        await bucket.put("l", b"2")
        await kit.is_state("SOURCE_LOST")
        assert f"other.{kit.bucket}.x" in (await kit.source()).report.reason
        assert await kit.revision() == 1
        assert await kit.fold() == {"k": b"1"}


async def test_subjects_left_from_before_the_stream_was_a_bucket_stop_the_source(kit: BucketKit) -> None:
    await configure(kit, kit.bucket, {"subjects": [f"old.{kit.bucket}.>"]})
    await kit.js.publish(f"old.{kit.bucket}.x", b"x")
    await configure(kit, kit.bucket, {"subjects": [f"$KV.{kit.bucket}.>"]}, verb="UPDATE")
    await kit.js.publish(f"$KV.{kit.bucket}.k", b"1")
    await kit.make_source()
    async with kit.ingest():
        await kit.is_state("SOURCE_LOST")
        assert f"old.{kit.bucket}.x" in (await kit.source()).report.reason


@pytest.mark.parametrize(
    ("dest", "prefix"),
    [
        ("$KV.t.>", b"$KV.b."),
        ("$KV.b.sub.>", b"$KV.b."),
        ("copies.>", b"copies."),
        ("$KV.{{wildcard(1)}}.>", b"$KV."),
        ("{{wildcard(1)}}.x", b"$KV.b."),
        ("fixed", b"$KV.b."),
    ],
)
def test_rules_come_from_the_literal_start_of_a_transform(dest: str, prefix: bytes) -> None:
    config: Config = {"subject_transform": {"src": ">", "dest": dest}}
    rules = possible_rules("b", config)
    assert rules[0] == own_rule("b")
    assert prefix in {rule.prefix for rule in rules}
