"""Advice of a failed command: the limit, the setting, and the other side of the error."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from eddyline.cli.access import tls_cause
from eddyline.cli.command import CONNECT_S
from eddyline.cli.errors import CommandError, failure_line
from eddyline.cli.local_cluster.away import unreachable_error
from eddyline.cli.main import parse_arguments
from eddyline.core.auth.caller_channel import CallerAccess
from eddyline.core.errors import BatchTooLarge, BucketNotFound, EddylineError, NotKv, NotReady, RecordTooLarge
from eddyline.core.tls.files import Certificate, ClientTls
from tests.support.certificates import Authority
from tests.support.command_line import Command, command_on_a_store
from tests.support.manual_clock import ManualClock, pass_time_until
from tests.support.store.served import served_store

if TYPE_CHECKING:
    from pathlib import Path


async def test_append_over_a_cap_names_limit_and_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with command_on_a_store(tmp_path / "data", monkeypatch) as command:
        assert (await command.run("topic", "create", "small", "--cap-bytes", "1000"))[0] == 0
        with pytest.raises(RecordTooLarge) as over_cap:
            await command.run("append", "small", "x" * 2_000)
        with pytest.raises(RecordTooLarge) as over_bound:
            await command.run("append", "small", "x" * 2_000_000)
        assert (await command.run("topic", "create", "full", "--cap-records", "1", "--discard", "reject"))[0] == 0
        assert (await command.run("append", "full", "a"))[0] == 0
        with pytest.raises(EddylineError) as full:
            await command.run("append", "full", "b")
    line = failure_line(over_cap.value)
    assert "the topic's cap is 1000" in line
    assert "eddyline topic update TOPIC --cap-bytes" in line
    line = failure_line(over_bound.value)
    assert "at most 1048576" in line
    assert "the limit is the same for every topic: split the record" in line
    assert "raise the cap with `eddyline topic update`" in failure_line(full.value)
    assert "several calls" in failure_line(BatchTooLarge("more than 10000 records"))


@pytest.mark.parametrize(
    ("origin", "line"),
    [
        (
            "--cluster",
            "the port a:4222, which --cluster names, does not speak gRPC (give the address of an Eddyline role)",
        ),
        ("EDDYLINE_ADDRESS", "the port a:4222, which EDDYLINE_ADDRESS names, does not speak gRPC (give the address"),
    ],
)
def test_port_of_another_protocol_is_named(origin: str, line: str) -> None:
    error = NotReady("the port 127.0.0.1:4222 does not speak gRPC")
    error.unanswered = True
    assert line in failure_line(unreachable_error("a:4222", origin, error, CallerAccess()))


@pytest.mark.parametrize(
    ("metadata", "advice"),
    [
        ({"bucket": "b"}, "create the bucket with `nats kv add NAME --history 64`"),
        ({"stream": "s"}, "create the stream with `nats stream add NAME`"),
    ],
)
def test_missing_bucket_or_stream_says_how_to_create_it(metadata: dict[str, str], advice: str) -> None:
    line = failure_line(BucketNotFound("NATS has none", **metadata), verb="kv put")
    assert f"({advice}, or delete its source with `eddyline source delete`)" in line


async def test_file_that_is_too_large_for_a_value_is_advised_to_be_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "large").write_bytes(b"x" * 2_000_000)
    async with command_on_a_store(tmp_path / "data", monkeypatch) as command:
        with pytest.raises(CommandError, match=r"large is longer than [0-9]+ bytes") as refused:
            await command.run("append", "log", "--file", str(tmp_path / "large"))
        with (tmp_path / "large").open() as file:
            monkeypatch.setattr("sys.stdin", file)
            with pytest.raises(CommandError, match="standard input is longer than") as of_stdin:
                await command.run("append", "log", "--file", "-")
    assert refused.value.advice == of_stdin.value.advice
    assert "split it, or store a reference to the data" in refused.value.advice


def test_stream_source_gets_no_kv_advice() -> None:
    of_source = failure_line(NotKv("source ev copies a stream, which has no fold to compare", source="ev"))
    assert "read it with `eddyline read`" in of_source
    assert "--kind kv" not in of_source
    assert "--kind kv" in failure_line(NotKv("topic t has no fold", topic="t"))


@pytest.mark.parametrize("op", ["delete", "purge"])
def test_delete_with_a_value_is_wrong_usage(op: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_arguments(["append", "kv", "--key", "k", "--op", op, "value"])
    assert ended.value.code == 2
    assert f"--op {op} takes no value, only a key" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("said", "access", "advice"),
    [
        ("last error: UNAVAILABLE: ipv4:127.0.0.1:7701: Socket closed", CallerAccess(), "if the cluster uses TLS"),
        (
            "recvmsg:Connection reset by peer",
            CallerAccess(tls=ClientTls()),
            "a client certificate, give --tls-cert FILE",
        ),
        ("SSL routines: TLSV1_ALERT_UNKNOWN_CA", CallerAccess(tls=ClientTls(b"", Certificate(b"", b""))), "trusts"),
        (
            "Unwrap failed (TSI_DATA_CORRUPTED)",
            CallerAccess(tls=ClientTls()),
            "client certificate, give --tls-cert FILE",
        ),
        ("Connection refused", CallerAccess(), "try again in a moment"),
        ("connection attempt timed out", CallerAccess(tls=ClientTls()), "try again in a moment"),
    ],
)
def test_missing_answer_advises_by_cause_and_credentials(said: str, access: CallerAccess, advice: str) -> None:
    assert advice in failure_line(NotReady(said, **{tls_cause(said, access): 1}))


async def test_tls_against_a_plain_store_advises_to_drop_it(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "certificates")
    # The command tries for seconds; a clock that a test advances shortens its waits, not its calls.
    clock = ManualClock()
    async with served_store(tmp_path / "data") as store:
        command = Command(store.address, clock)
        with pytest.RaisesGroup(NotReady) as refused:
            async with asyncio.TaskGroup() as group:
                running = group.create_task(command.run("status", "--tls-ca", str(authority.own.certificate)))
                await pass_time_until(running, clock, CONNECT_S)
    (error,) = refused.value.exceptions
    assert isinstance(error, NotReady)
    assert "it uses no TLS: leave out --tls-ca" in failure_line(error)


async def test_delete_record_that_was_read_goes_in_again_with_its_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with command_on_a_store(tmp_path / "data", monkeypatch) as command:
        assert (await command.run("topic", "create", "kv", "--kind", "kv"))[0] == 0
        assert (await command.run("append", "kv", "--json", '{"op": "DELETE", "key": "k", "data": "why"}'))[0] == 0
        assert (await command.run("read", "kv"))[1][0]["data"] == "why"
        assert (await command.run("get", "kv", "k"))[0] == 1
