"""Streams into LOG topics, filters of either kind, and dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from nats.js.api import KeyValueConfig, StreamConfig

from eddyline.core.errors import InvalidArgument, NotKv, NotLog, TopicHasSource, TopicNotFound
from eddyline.core.model.source import SourceDefinition
from eddyline.core.model.topic import Kind, TopicConfig
from eddyline.core.records.record import Op
from eddyline.ingest.copy.dead_letters import LETTERS_AT_ONCE, LETTERS_CONFIG
from eddyline.ingest.copy.filter import Filter
from eddyline.ingest.sources.creation import check_new_source, create_source
from tests.support.sim.cut_link import CutLink

if TYPE_CHECKING:
    from tests.support.ingest.kit import SourceKit


RECEIVED_MESSAGES, OVERRUN_MESSAGES = 5, 6_000


async def make_stream(sources: SourceKit, name: str, **config: object) -> None:
    await sources.js.add_stream(StreamConfig(name=name, subjects=[f"{name}.>"], **config))  # type: ignore[arg-type]


async def publish(sources: SourceKit, subject: str, data: bytes, **headers: str) -> int:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return (await sources.js.publish(subject, data, headers=named or None)).seq


async def delivered(sources: SourceKit, stream: str) -> int:
    """Revision up to which NATS has sent messages to the one consumer of a stream."""
    (consumer,) = await sources.js.consumers_info(stream)
    return consumer.delivered.stream_seq if consumer.delivered is not None else 0


async def test_stream_becomes_a_log_with_subject_headers_and_message_id(sources: SourceKit, bucket_name: str) -> None:
    await make_stream(sources, bucket_name)
    await sources.define(SourceDefinition("s", "t", stream=bucket_name))
    await publish(sources, f"{bucket_name}.a", b"1", Trace="x", Nats_Msg_Id="m1", KV_Operation="DEL")
    await publish(sources, f"{bucket_name}.a", b"1", Nats_Msg_Id="m1")  # a duplicate: NATS keeps one
    last = await publish(sources, f"{bucket_name}.b.c", b"")
    async with sources.ingest():
        await sources.is_state("s", "LIVE")
        await sources.reaches("s", last)
        last = await publish(sources, f"{bucket_name}.a", b"3")
        await sources.reaches("s", last)
    rows = await sources.rows("t")
    assert [(row.op, row.key, row.data) for row in rows] == [
        (Op.APPEND, f"{bucket_name}.a".encode(), b"1"),
        (Op.APPEND, f"{bucket_name}.b.c".encode(), b""),
        (Op.APPEND, f"{bucket_name}.a".encode(), b"3"),
    ]
    headers = {entry.name: entry.value for entry in rows[0].meta}
    assert headers == {"Trace": b"x", "Nats-Msg-Id": b"m1", "KV-Operation": b"DEL"}
    assert [int.from_bytes(row.version, "big") for row in rows] == [1, 2, 3]
    assert all(row.source_ts_ns for row in rows)


async def test_stream_is_copied_once_across_takeovers(sources: SourceKit, bucket_name: str) -> None:
    await make_stream(sources, bucket_name)
    await sources.define(SourceDefinition("s", "t", stream=bucket_name))
    sent = 0
    for holder in ("one", "two", "three"):
        async with sources.ingest(holder=holder):
            for _ in range(20):
                sent = await publish(sources, f"{bucket_name}.a", b"%d" % (sent + 1))
            await sources.reaches("s", sent - 5)
    async with sources.ingest(holder="last"):
        await sources.reaches("s", sent)
    assert [row.data for row in await sources.rows("t")] == [b"%d" % number for number in range(1, sent + 1)]


async def test_messages_missing_in_a_stream_are_gaps(sources: SourceKit, bucket_name: str) -> None:
    await make_stream(sources, bucket_name)
    await sources.define(SourceDefinition("s", "t", stream=bucket_name))
    for number in range(10):
        await publish(sources, f"{bucket_name}.a", b"%d" % number)
    for revision in (1, 2, 5, 6, 9):
        await sources.js.delete_msg(bucket_name, revision)
    async with sources.ingest():
        await sources.is_state("s", "LIVE")
    assert [row.data for row in await sources.rows("t") if row.op != Op.GAP] == [b"2", b"3", b"6", b"7", b"9"]
    assert await sources.gaps("t") == [(1, 2), (5, 6), (9, 9)]


@pytest.mark.parametrize("leaves", ["at once", "by a pause", "by a stop"])
async def test_messages_missing_at_the_end_of_a_stream_are_a_gap_whatever_happens_to_the_source(
    sources: SourceKit, bucket_name: str, leaves: str
) -> None:
    await make_stream(sources, bucket_name)
    await sources.define(SourceDefinition("s", "t", stream=bucket_name))
    for number in range(5):
        last = await publish(sources, f"{bucket_name}.a", b"%d" % number)
    for revision in (last - 1, last):
        await sources.js.delete_msg(bucket_name, revision)
    async with sources.ingest() as role:
        await sources.is_state("s", "LIVE")
        await sources.reaches("s", last)
        if leaves == "by a pause":
            role.ownership.apply_control(await sources.link.control_source("s", paused=True))
            await sources.is_state("s", "PAUSED")
            role.ownership.apply_control(await sources.link.control_source("s", paused=False))
        elif leaves == "at once":
            await sources.reaches("s", await publish(sources, f"{bucket_name}.a", b"after"))
    async with sources.ingest():
        last = await publish(sources, f"{bucket_name}.a", b"more")
        await sources.reaches("s", last)
    assert await sources.gaps("t") == [(4, 5)]


@pytest.mark.parametrize("policy", ["RESYNC", "STOP"])
async def test_recreated_stream_is_read_from_its_start_after_a_gap_for_the_old_one(
    sources: SourceKit, bucket_name: str, policy: str
) -> None:
    await make_stream(sources, bucket_name)
    await sources.define(SourceDefinition("s", "t", stream=bucket_name, on_recreated=policy))  # type: ignore[arg-type]
    async with sources.ingest() as role:
        await sources.reaches("s", await publish(sources, f"{bucket_name}.a", b"old"))
        await sources.is_state("s", "LIVE")
        await sources.js.delete_stream(bucket_name)
        await make_stream(sources, bucket_name)
        for number in range(3):
            await publish(sources, f"{bucket_name}.a", b"%d" % number)
        if policy == "STOP":
            await sources.is_state("s", "STREAM_RECREATED")
            role.ownership.apply_control(await sources.link.control_source("s", resync=True))

        async def is_copied() -> bool:
            return [row.data for row in await sources.rows("t")] == [b"old", b"0", b"1", b"2"]

        await sources.until(is_copied)
        await sources.is_state("s", "LIVE")
    assert await sources.gaps("t") == [(2, 0)], "what the old stream had behind revision 1 nobody knows"


async def test_revisions_that_a_recreated_stream_dropped_unread_are_a_gap(sources: SourceKit, bucket_name: str) -> None:
    await make_stream(sources, bucket_name)
    await sources.define(SourceDefinition("s", "t", stream=bucket_name, on_recreated="RESYNC"))
    async with sources.ingest():
        await sources.reaches("s", await publish(sources, f"{bucket_name}.a", b"old"))
    await sources.js.delete_stream(bucket_name)
    await make_stream(sources, bucket_name, max_msgs=2)
    for number in range(5):
        last = await publish(sources, f"{bucket_name}.a", b"%d" % number)
    async with sources.ingest():
        await sources.reaches("s", last)
        await sources.is_state("s", "LIVE")
    assert [row.data for row in await sources.rows("t")] == [b"old", b"3", b"4"]
    assert await sources.gaps("t") == [(2, 0), (1, 3)]


@pytest.mark.parametrize("kind", ["bucket", "stream"])
async def test_what_was_received_before_an_overrun_is_applied_before_the_source_stops(
    sources: SourceKit, bucket_name: str, kind: str
) -> None:
    stream = bucket_name if kind == "stream" else f"KV_{bucket_name}"
    if kind == "stream":
        await make_stream(sources, bucket_name, max_msgs=3)
        definition, prefix = SourceDefinition("s", "t", stream=bucket_name, on_expired="STOP"), f"{bucket_name}."
    else:
        await sources.make_bucket(bucket_name, history=4)
        config = (await sources.js.stream_info(stream)).config
        await sources.js.update_stream(config.evolve(max_msgs=3, discard="old"))
        definition, prefix = SourceDefinition("s", "t", bucket_name, on_expired="STOP"), f"$KV.{bucket_name}."
    await sources.define(definition)
    link = CutLink(sources.link)
    async with sources.ingest(link=link):
        await sources.is_state("s", "LIVE")
        link.applies_open.clear()
        for number in range(RECEIVED_MESSAGES):  # gathered one by one, while the first waits for the store
            last = (await sources.js.publish(f"{prefix}k{number}", b"x")).seq

            async def is_sent(revision: int = last) -> bool:
                return await delivered(sources, stream) == revision

            await sources.until(is_sent)
        for number in range(RECEIVED_MESSAGES, OVERRUN_MESSAGES):
            await sources.client.publish(f"{prefix}k{number}", b"x")
        await sources.client.flush()
        await sources.js.account_info()
        link.applies_open.set()
        await sources.is_state("s", "CURSOR_EXPIRED")
        reason = (await sources.link.get_source("s")).report.reason
    applied = await sources.revision("s")
    assert applied >= RECEIVED_MESSAGES
    assert reason.startswith(f"revisions {applied + 1} to ")
    assert [int.from_bytes(row.version, "big") for row in await sources.rows("t")] == list(range(1, applied + 1))
    assert await sources.gaps("t") == []
    await sources.link.control_source("s", resync=True)
    async with sources.ingest():
        await sources.reaches("s", OVERRUN_MESSAGES)
    assert await sources.gaps("t") == [(applied + 1, OVERRUN_MESSAGES - 3)]


async def test_filters_of_a_stream_copy_what_they_name_once(sources: SourceKit, bucket_name: str) -> None:
    await make_stream(sources, bucket_name)
    subjects = (f"{bucket_name}.orders.*", f"{bucket_name}.*.eu", f"{bucket_name}.deep.>")
    await sources.define(SourceDefinition("s", "t", stream=bucket_name, subjects=subjects))
    for tail in ("orders.eu", "orders.us", "bills.us", "bills.eu", "deep.a.b", "deep", "orders.eu.x"):
        last = await publish(sources, f"{bucket_name}.{tail}", tail.encode())
    async with sources.ingest():
        await sources.is_state("s", "LIVE")
        await sources.reaches("s", last)
    assert [row.data for row in await sources.rows("t")] == [b"orders.eu", b"orders.us", b"bills.eu", b"deep.a.b"]
    assert await sources.gaps("t") == []


async def test_filters_of_a_bucket_hold_for_copies_deletes_and_resyncs(sources: SourceKit, bucket_name: str) -> None:
    bucket = await sources.make_bucket(bucket_name, history=4)
    await sources.define(
        SourceDefinition("s", "t", bucket_name, key_prefixes=(b"certs.", b"certs.a"), subjects=("routes.*",))
    )
    for key in ("certs.a", "certs.b", "routes.x", "routes.x.y", "other"):
        await bucket.put(key, b"1")
    async with sources.ingest() as role:
        await sources.is_state("s", "LIVE")
        assert (await sources.fold("t")).keys() == {b"certs.a", b"certs.b", b"routes.x"}
        await bucket.delete("other")
        await sources.reaches("s", await bucket.put("certs.a", b"2"))
        role.ownership.apply_control(await sources.link.control_source("s", resync=True))
        await sources.reaches("s", await bucket.put("certs.c", b"3"))
        await sources.is_state("s", "LIVE")
        comparison = await role.comparer.compare(
            (await sources.link.get_source("s")).definition, name="compare", settle_s=5, limit=10
        )
        assert (comparison.difference_count, comparison.bucket_count) == (0, 4)
    assert await sources.fold("t") == {b"certs.a": b"2", b"certs.b": b"1", b"certs.c": b"3", b"routes.x": b"1"}
    assert len(await sources.rows("t")) == 5


async def test_a26_rollup_under_a_filter_of_two_prefixes_skips_nothing(sources: SourceKit, bucket_name: str) -> None:
    bucket = await sources.make_bucket(bucket_name)
    await sources.define(SourceDefinition("s", "t", bucket_name, key_prefixes=(b"a.", b"b.")))
    link = CutLink(sources.link)
    async with sources.ingest(link=link):
        await sources.is_state("s", "LIVE")
        await bucket.put("b.held", b"0")
        link.applies_open.clear()  # what an acknowledgement that is held is to others
        await bucket.put("b.held", b"1")
        await sources.until(lambda: link.applying > 0)
        for number in range(20):
            for key in ("a.rolled", "b.kept", "other"):
                await bucket.put(key, b"%d" % number)
            if number % 5 == 4:
                rollup = {"Nats-Rollup": "sub"}
                last = (await sources.js.publish(f"$KV.{bucket_name}.a.rolled", b"up", headers=rollup)).seq
        link.applies_open.set()
        await sources.reaches("s", last)
        await sources.is_state("s", "LIVE")
        assert (await sources.link.get_source("s")).report.lag == 0
    rows = await sources.rows("t")
    assert [row.data for row in rows if row.key == b"b.kept"] == [b"%d" % number for number in range(20)]
    assert await sources.fold("t") == {b"b.held": b"1", b"a.rolled": b"up", b"b.kept": b"19"}
    assert await sources.gaps("t") == []


@pytest.mark.parametrize(
    ("config", "expected_reason"),
    [
        ({"history": 1}, "it keeps 1 revision of a key; the maximum is 64"),
        ({"history": 64, "ttl": 60}, "messages expire without markers"),
        ({"history": 64}, ""),
    ],
)
async def test_b02_bucket_that_may_lose_revisions_is_warned_of(
    sources: SourceKit, bucket_name: str, config: dict[str, int], expected_reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    await sources.js.create_key_value(KeyValueConfig(bucket=bucket_name, **config))  # type: ignore[arg-type]
    await sources.define(SourceDefinition("s", "t", bucket_name))
    async with sources.ingest():
        await sources.is_state("s", "LIVE")
    warned = [record for record in caplog.records if record.getMessage() == "source may miss revisions"]
    assert [vars(record)["fields"]["reason"] for record in warned] == ([expected_reason] if expected_reason else [])


async def test_overrun_of_a_filtered_source_is_seen(sources: SourceKit, bucket_name: str) -> None:
    bucket = await sources.make_bucket(bucket_name, history=1)
    await sources.define(SourceDefinition("s", "t", bucket_name, key_prefixes=(b"mine.",)))
    async with sources.ingest():
        await sources.reaches("s", await bucket.put("mine.a", b"1"))
    config = (await sources.js.stream_info(f"KV_{bucket_name}")).config
    await sources.js.update_stream(config.evolve(max_msgs=2, discard="old"))
    await bucket.put("mine.b", b"1")  # read by nobody
    for number in range(4):
        await bucket.put(f"other.{number}", b"x")
    async with sources.ingest():
        await sources.is_state("s", "LIVE")
    assert await sources.fold("t") == {}
    assert await sources.gaps("t") == [(2, 4)]


async def test_message_that_does_not_fit_becomes_a_dead_letter_once(sources: SourceKit, bucket_name: str) -> None:
    bucket = await sources.make_bucket(bucket_name, history=4)
    await sources.define(SourceDefinition("s", "t", bucket_name, dead_letter_topic="letters"))
    await bucket.put("a", b"1")
    headers = {f"H{number}": "x" for number in range(100)}  # more than a record has
    await sources.js.publish(f"$KV.{bucket_name}.a", b"misfit", headers=headers)
    last = await bucket.put("b", b"2")
    async with sources.ingest() as role:
        await sources.is_state("s", "LIVE")
        role.ownership.apply_control(await sources.link.control_source("s", resync=True))  # meets it again
        last = await bucket.put("c", b"3")
        await sources.reaches("s", last)
        await sources.is_state("s", "LIVE")
    assert await sources.fold("t") == {b"a": b"1", b"b": b"2", b"c": b"3"}
    assert await sources.gaps("t") == [(2, 2)]
    assert (await sources.link.get_topic("letters")).config == LETTERS_CONFIG, "known again for a day"
    (letter,) = await sources.rows("letters")
    fields = {entry.name: entry.value for entry in letter.meta}
    assert letter.key == f"$KV.{bucket_name}.a".encode()
    assert letter.data == b"misfit"
    assert (fields["revision"], fields["source"]) == (b"2", b"s")
    assert b"100 headers" in fields["reason"]


async def test_dead_letters_of_a_burst_are_on_their_way_together_and_stored_once(
    sources: SourceKit, bucket_name: str
) -> None:
    await make_stream(sources, bucket_name)
    await sources.define(SourceDefinition("s", "t", stream=bucket_name, dead_letter_topic="letters"))
    headers = {f"H{number}": "x" for number in range(100)}  # more than a record has
    count = 2 * LETTERS_AT_ONCE + 1
    link = CutLink(sources.link)
    link.applies_open.clear()
    link.appends_open.clear()
    link.answers_to_lose = 5

    async def are_sent() -> bool:
        return await delivered(sources, bucket_name) == count + 1

    async def are_stored() -> bool:
        return len(await sources.rows("letters")) >= count

    async with sources.ingest(link=link):
        await publish(sources, f"{bucket_name}.fits", b"first")
        await sources.until(lambda: link.applying > 0)
        for number in range(count):  # gathered while the first waits for the store
            last = (await sources.js.publish(f"{bucket_name}.k", b"%d" % number, headers=headers)).seq
        await sources.until(are_sent)
        link.applies_open.set()
        await sources.until(lambda: link.appending == LETTERS_AT_ONCE)
        link.applies_open.clear()
        link.appends_open.set()
        await sources.until(are_stored)
        await sources.until(lambda: link.applying > 0)
    assert await sources.revision("s") == 1
    async with sources.ingest():  # meets all of them again
        await sources.reaches("s", last)
    stored = [int(row.data or b"") for row in await sources.rows("letters")]
    assert sorted(stored) == list(range(count))
    assert await sources.gaps("t") == [(number, number) for number in range(2, last + 1)]


async def test_dead_letters_go_on_where_their_topic_was_deleted(sources: SourceKit, bucket_name: str) -> None:
    await make_stream(sources, bucket_name)
    await sources.define(SourceDefinition("s", "t", stream=bucket_name, dead_letter_topic="letters"))
    await sources.link.delete_topic("letters")
    headers = {f"H{number}": "x" for number in range(100)}
    last = (await sources.js.publish(f"{bucket_name}.a", b"2", headers=headers)).seq
    async with sources.ingest():
        await sources.reaches("s", last)
        await sources.is_state("s", "LIVE")
    assert len(await sources.rows("letters")) == 1


@pytest.mark.parametrize(
    ("config", "words"),
    [({"subjects": ["foo.taken"]}, "it is not a bucket"), ({"retention": "workqueue"}, "it is a work queue")],
)
async def test_stream_that_cannot_be_copied_has_the_reason(
    sources: SourceKit, bucket_name: str, config: dict[str, object], words: str
) -> None:
    name = f"KV_{bucket_name}"
    subject = f"{bucket_name}.foo"
    await sources.js.add_stream(StreamConfig(**{"name": name, "subjects": [subject], **config}))  # type: ignore[arg-type]
    is_queue = "retention" in config
    definition = SourceDefinition("s", "t", stream=name) if is_queue else SourceDefinition("s", "t", bucket_name)
    await sources.define(definition)
    async with sources.ingest():
        await sources.is_state("s", "SOURCE_LOST")
    assert words in (await sources.link.get_source("s")).report.reason


async def test_refused_source_leaves_no_topic(sources: SourceKit, bucket_name: str) -> None:
    await sources.link.create_topic("kv", Kind.KV, TopicConfig())
    await sources.define(SourceDefinition("first", "written", stream=bucket_name, dead_letter_topic="letters"))
    refused = (
        (SourceDefinition("s", "new", "b", dead_letter_topic="kv"), NotLog),
        (SourceDefinition("s", "new", "b", dead_letter_topic="written"), TopicHasSource),
        (SourceDefinition("s", "letters", stream="S"), TopicHasSource),
    )
    for definition, error in refused:
        with pytest.raises(error):
            await create_source(sources.link, definition, TopicConfig())
    with pytest.raises(TopicNotFound):
        await sources.link.get_topic("new")


async def test_misfit_without_dead_letters_stops_the_source(sources: SourceKit, bucket_name: str) -> None:
    await make_stream(sources, bucket_name)
    await sources.define(SourceDefinition("s", "t", stream=bucket_name))
    await publish(sources, f"{bucket_name}.a", b"1")
    await sources.js.publish(f"{bucket_name}.a", b"2", headers={f"H{number}": "x" for number in range(100)})
    async with sources.ingest():
        await sources.is_state("s", "OVERSIZE")
    assert [row.data for row in await sources.rows("t")] == [b"1"]


async def test_kinds_of_topics_must_fit(sources: SourceKit) -> None:
    await sources.link.create_topic("kv", Kind.KV, TopicConfig())
    await sources.link.create_topic("log", Kind.LOG, TopicConfig())
    with pytest.raises(NotLog):
        await create_source(sources.link, SourceDefinition("s", "kv", stream="S"), TopicConfig())
    with pytest.raises(NotKv):
        await create_source(sources.link, SourceDefinition("s", "log", "b"), TopicConfig())
    with pytest.raises(NotLog):
        await create_source(sources.link, SourceDefinition("s", "t", "b", dead_letter_topic="kv"), TopicConfig())


@pytest.mark.parametrize(
    "definition",
    [
        SourceDefinition("s", "t"),
        SourceDefinition("s", "t", "b", stream="S"),
        SourceDefinition("s", "t", stream="a.b"),
        SourceDefinition("s", "t", stream="S", key_prefixes=(b"x",)),
        SourceDefinition("s", "t", "b", key_prefixes=(b"",)),
        SourceDefinition("s", "t", "b", key_prefixes=(b"x" * 1025,)),
        SourceDefinition("s", "t", "b", subjects=("a..b",)),
        SourceDefinition("s", "t", "b", subjects=(">.a",)),
        SourceDefinition("s", "t", "b", subjects=("a*",)),
        SourceDefinition("s", "t", "b", subjects=("a b",)),
        SourceDefinition("s", "t", "b", dead_letter_topic="t"),
    ],
)
def test_definitions_that_cannot_be_are_refused(definition: SourceDefinition) -> None:
    with pytest.raises(InvalidArgument):
        check_new_source(definition)


@pytest.mark.parametrize(
    ("subject", "key", "takes"),
    [
        ("a.*", b"a.b", True),
        ("a.*", b"a", False),
        ("a.*", b"a.b.c", False),
        ("a.>", b"a.b.c", True),
        ("a.>", b"a", False),
        (">", b"a", True),
        ("a.b", b"a.b", True),
        ("a.b", b"a-b", False),
        ("*.c", b"\xff.c", True),
    ],
)
def test_subjects_are_those_of_nats(subject: str, key: bytes, takes: bool) -> None:
    assert Filter(SourceDefinition("s", "t", "b", subjects=(subject,))).matches(key) == takes
