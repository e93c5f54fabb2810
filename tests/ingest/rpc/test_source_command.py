"""`eddyline source` from the command line to NATS: every verb, over gRPC, against a running replica."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
from nats.js.api import KeyValueConfig, StreamConfig

from eddyline.cli.errors import failure_line
from eddyline.cli.main import parse_arguments
from eddyline.core.errors import NotKv, SourceExists, SourceNotFound
from eddyline.core.forwarding.stats import ForwardedCalls
from eddyline.core.telemetry import names as telemetry
from eddyline.core.transport.channel import open_channel
from eddyline.ingest.metrics import ingest_metrics
from eddyline.v1 import apply_pb2, source_pb2, source_pb2_grpc
from tests.support.command_line import command_at
from tests.support.telemetry.scrape import in_place

if TYPE_CHECKING:
    from tests.support.ingest.kit import SourceKit


async def test_a_source_is_made_paused_resumed_resynced_and_deleted(
    sources: SourceKit, bucket_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = await sources.make_bucket(bucket_name, history=1)
    async with sources.ingest() as role, sources.served(role) as address:
        command = command_at("127.0.0.1:1", monkeypatch, ingest=address)
        filters = ("--key-prefix", "a", "--subject", "b.*", "--on-expired", "stop", "--on-recreated", "resync")
        create = ("source", "create", "certs", "--bucket", bucket_name, *filters, "--dead-letter-topic", "dead")
        code, (made,) = await command.run(*create)
        assert (code, made["created"], made["key_prefixes"], made["subjects"]) == (0, True, ["a"], ["b.*"])
        assert (made["on_expired"], made["on_recreated"], made["dead_letter_topic"]) == ("STOP", "RESYNC", "dead")
        assert (await command.run(*create))[1][0]["created"] is False
        await sources.is_state("certs", "LIVE")
        code, (paused,) = await command.run("source", "pause", "certs")
        assert (code, paused["paused"]) == (0, True)
        await sources.is_state("certs", "PAUSED")
        last = await bucket.put("a", b"1")
        code, (resumed,) = await command.run("source", "resume", "certs")
        assert (code, resumed["paused"]) == (0, False)
        await sources.reaches("certs", last)
        code, (resynced,) = await command.run("source", "resync", "certs")
        assert (code, resynced["resync_pending"]) == (0, True)

        async def is_done() -> bool:
            return (await command.run("source", "get", "certs"))[1][0]["resync_pending"] is False

        await sources.until(is_done)
        with pytest.raises(SourceNotFound):
            await command.run("source", "pause", "nobody")
        assert (await command.run("source", "delete", "certs"))[0] == 0
        assert (await command.run("source", "list"))[1] == []


async def test_a_stream_is_copied_by_the_command(
    sources: SourceKit, bucket_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sources.js.add_stream(StreamConfig(name=bucket_name, subjects=[f"{bucket_name}.>"]))
    async with sources.ingest() as role, sources.served(role) as address:
        command = command_at("127.0.0.1:1", monkeypatch, ingest=address)
        code, text = await command.text("source", "create", "orders", "--stream", bucket_name)
        assert (code, text) == (0, f"created orders: stream {bucket_name} to topic orders\n")
        last = (await sources.js.publish(f"{bucket_name}.a", b"1")).seq
        await sources.reaches("orders", last)
        code, text = await command.text("source", "list")
        assert code == 0
        assert bucket_name in text
        with pytest.raises(NotKv):
            await command.text("source", "compare", "orders")
    assert [row.data for row in await sources.rows("orders")] == [b"1"]


async def test_a_source_that_is_there_otherwise_names_what_differs_and_what_helps(
    sources: SourceKit, bucket_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sources.ingest() as role, sources.served(role) as address:
        command = command_at("127.0.0.1:1", monkeypatch, ingest=address)
        create = ("source", "create", "certs", "--bucket", bucket_name)
        await command.run(*create, "--key-prefix", "prod.")
        with pytest.raises(SourceExists) as refusal:
            await command.run(*create, "--key-prefix", "test.", "--on-expired", "stop")
        line = failure_line(refusal.value)
        assert "it differs in key_prefixes prod., not test., on_expired RESYNC, not STOP" in line
        assert "delete the source, then create it with a new topic" in line
        with pytest.raises(SourceExists) as refusal:
            await command.run(*create, "--key-prefix", "prod.", "--on-expired", "stop")
        assert "`eddyline source update NAME` changes it" in failure_line(refusal.value)


async def test_a_source_of_a_bucket_that_is_missing_is_made_with_a_note(
    sources: SourceKit, bucket_name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with sources.ingest() as role, sources.served(role) as address:
        command = command_at("127.0.0.1:1", monkeypatch, ingest=address)
        create = ("source", "create", "certs", "--bucket", bucket_name)
        assert (await command.text(*create))[0] == 0
        note = f"eddyline: NATS has no bucket {bucket_name} yet: copying starts once it exists\n"
        assert capsys.readouterr().err == note
        code, (made,) = await command.run(*create)
        assert (code, made["state"], made["reason"]) == (0, "SOURCE_LOST", f"NATS has no bucket {bucket_name}")
        await sources.make_bucket(bucket_name, history=1)
        await sources.is_state("certs", "LIVE")
        code, text = await command.text(*create)
        assert (code, capsys.readouterr().err) == (0, "")
        assert "the maximum is 64" in text


async def test_warning_of_a_lossy_bucket_is_in_every_output(
    sources: SourceKit, bucket_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sources.js.create_key_value(KeyValueConfig(bucket=bucket_name, history=5, ttl=3600))
    lossy = ("it keeps 5 revisions of a key; the maximum is 64", "messages expire without markers")
    warnings = [f"may miss revisions: {caution}" for caution in lossy]
    async with sources.ingest() as role, sources.served(role) as address:
        command = command_at("127.0.0.1:1", monkeypatch, ingest=address)
        create = ("source", "create", "certs", "--bucket", bucket_name)
        code, text = await command.text(*create)
        assert (code, text.splitlines()[1:]) == (0, [f"  warning: {warning}" for warning in warnings])
        assert (await command.run(*create))[1][0]["warnings"] == warnings
        await sources.is_state("certs", "LIVE")
        for verb in (("get", "certs"), ("list",)):
            assert (await command.run("source", *verb))[1][0]["warnings"] == warnings
            assert warnings[0] in (await command.text("source", *verb))[1]
        seen = in_place(await ingest_metrics(role, ForwardedCalls(1)))
        assert seen.value(telemetry.INGEST_SOURCE_LOSSY_SETTINGS, source="certs") == 2
        # Also in the answer itself, before anybody copies: other languages have no command.
        async with open_channel(address, own_connection=True) as channel:
            request = source_pb2.CreateSourceRequest(
                definition=apply_pb2.SourceDefinition(name="second", topic="second", bucket=bucket_name)
            )
            answer = await source_pb2_grpc.SourceServiceStub(channel).CreateSource(request)
        assert list(answer.source.detail.warnings) == warnings


async def test_what_is_done_to_a_source_is_logged(
    sources: SourceKit, bucket_name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await sources.make_bucket(bucket_name, history=1)
    async with sources.ingest() as role, sources.served(role) as address:
        command = command_at("127.0.0.1:1", monkeypatch, ingest=address)
        for _ in range(2):
            await command.run("source", "create", "certs", "--bucket", bucket_name)
        await sources.is_state("certs", "LIVE")
        await command.run("source", "update", "certs", "--on-expired", "stop")
        await sources.is_state("certs", "LIVE")
        for verb in ("resync", "pause", "resume"):
            await command.run("source", verb, "certs")
        await command.run("source", "delete", "certs", "--yes")
    log_entries = [
        (record.getMessage(), vars(record)["fields"]) for record in caplog.records if "fields" in vars(record)
    ]
    settings = f"topic certs, bucket {bucket_name}, on_expired RESYNC, on_recreated STOP"
    done = [line for line in log_entries if line[0] in ("source created", "source updated", "source deleted")]
    assert done == [
        ("source created", {"source": "certs", "settings": settings}),
        ("source updated", {"source": "certs", "changes": "on_expired RESYNC -> STOP"}),
        ("source deleted", {"source": "certs", "settings": settings.replace("RESYNC", "STOP")}),
    ]
    reasons = [shown["reason"] for text, shown in log_entries if text == "source state"]
    assert "settings changed: on_expired RESYNC -> STOP" in reasons
    orders = [shown["orders"] for text, shown in log_entries if text == "source ordered"]
    assert orders == ["settings changed: on_expired RESYNC -> STOP", "resync requested", "paused", "resumed"]


async def test_a_stopped_source_is_changed_and_goes_on(
    sources: SourceKit, bucket_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = await sources.make_bucket(bucket_name, history=8)
    await sources.js.publish(f"$KV.{bucket_name}.a", b"x", headers={f"H{number}": "x" for number in range(100)})
    async with sources.ingest() as role, sources.served(role) as address:
        command = command_at("127.0.0.1:1", monkeypatch, ingest=address)
        assert (await command.run("source", "create", "certs", "--bucket", bucket_name, "--subject", "a"))[0] == 0
        await sources.is_state("certs", "OVERSIZE")
        update = ("source", "update", "certs", "--dead-letter-topic", "misfits", "--on-expired", "stop")
        code, (changed,) = await command.run(*update)
        assert (code, changed["dead_letter_topic"], changed["on_expired"]) == (0, "misfits", "STOP")
        assert (changed["on_recreated"], changed["subjects"]) == ("STOP", ["a"])
        await sources.reaches("certs", await bucket.put("a", b"1"))
        await sources.is_state("certs", "LIVE")
        code, text = await command.text("source", "update", "certs", "--no-dead-letter-topic", "--on-expired", "resync")
        assert text == (
            "updated certs: on-expired resync, on-recreated stop, messages that fit into no record stop it\n"
        )
        with pytest.raises(SourceNotFound):
            await command.run("source", "update", "nobody", "--on-expired", "stop")
    assert len(await sources.rows("misfits")) == 1


@pytest.mark.parametrize(
    ("words", "output"),
    [
        ((), "give a setting to change"),
        (("--dead-letter-topic", ""), "--no-dead-letter-topic removes the topic"),
        (("--dead-letter-topic", "a", "--no-dead-letter-topic"), "not allowed with"),
    ],
)
def test_update_without_a_change_or_with_two_is_wrong_usage(
    words: tuple[str, ...], output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_arguments(["source", "update", "certs", *words])
    assert ended.value.code == 2
    assert output in capsys.readouterr().err
