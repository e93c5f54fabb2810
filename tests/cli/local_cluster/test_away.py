"""Advice fits the failure: who is away is named, a start is advised where no address was given, no verb advises itself."""

from __future__ import annotations

import re
import socket
from typing import TYPE_CHECKING, Final

import pytest

from eddyline.cli import command as verb
from eddyline.cli.errors import failure_line
from eddyline.cli.local_cluster.away import describe_error, plain_text, unreachable_error, with_store_name
from eddyline.cli.main import parse_arguments
from eddyline.client.admin import sources
from eddyline.client.transport.topology import Topology
from eddyline.core import advice as table
from eddyline.core.auth.caller_channel import CallerAccess
from eddyline.core.errors import EddylineError, NotReady
from tests.support.command_line import command_at, command_on_a_store, main
from tests.support.store.served import served_store

if TYPE_CHECKING:
    from pathlib import Path

AWAY: Final = "127.0.0.1:1"
NOWHERE: Final = "no-such-host.invalid:7702"
REFUSED: Final = (
    "failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.7:7702: Failed to connect: refused"
)
UNRESOLVED: Final = (
    "errors resolving store:7701: [field:hostname lookup error:address lookup failed for store:7701: no]"
)
TOPOLOGY: Final = Topology("c", ("10.0.0.7:77020", "10.0.0.7:7701"), ("10.0.0.7:7702",), ("delivery:7703",))


def unanswered(message: str) -> NotReady:
    error = NotReady(message)
    error.unanswered = True
    return error


@pytest.mark.parametrize("line", ["verify s", "source pause s", "kv put b k v"])
async def test_role_that_is_away_is_named(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "CALL_TIMEOUT_S", 1.0)
    async with served_store(tmp_path) as store:
        with pytest.raises(NotReady) as raised:
            await command_at(store.address, monkeypatch, ingest=AWAY, delivery="127.0.0.1:2").run(*line.split())
    said = failure_line(raised.value)
    assert f"NOT_READY: ingest at {AWAY}: Failed to connect to remote host: Connection refused (" in said
    assert "eddyline up" not in said


async def test_advertised_name_that_does_not_resolve_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served_store(tmp_path) as store:
        with pytest.raises(NotReady) as raised:
            await command_at(store.address, monkeypatch, ingest=NOWHERE).run("kv", "put", "b", "k", "v")
    said = failure_line(raised.value)
    assert f"the cluster's address of ingest, {NOWHERE}, does not resolve here" in said
    assert "EDDYLINE_COMMON_INGEST_ADVERTISED_ADDRESSES" in said


async def test_roles_own_error_is_printed_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with command_on_a_store(tmp_path, monkeypatch) as command:
        with pytest.raises(EddylineError, match=r"^no topic t$"):
            await command.run("topic", "get", "t")
    said = failure_line(NotReady("the store is recovering"), verb="topic get")
    assert "try again in a moment; check the cluster with `eddyline status`" in said


@pytest.mark.parametrize(
    ("origin", "message", "said"),
    [
        (
            "--cluster",
            REFUSED,
            "no role answers at a:1, which --cluster names: Failed to connect: refused (check that a role",
        ),
        ("EDDYLINE_ADDRESS", REFUSED, "no role answers at a:1, which EDDYLINE_ADDRESS names: Failed"),
        (
            "data",
            REFUSED,
            "no role answers at a:1, where the cluster of data was: Failed to connect: refused (start the cluster",
        ),
        ("--cluster", UNRESOLVED, "a:1 does not resolve here (--cluster names it) (check the name"),
        ("--cluster", "last error: UNKNOWN: Socket closed", "Socket closed (if the cluster uses TLS, give --tls-ca"),
    ],
)
def test_start_is_advised_only_without_an_address(origin: str, message: str, said: str) -> None:
    line = failure_line(unreachable_error("a:1", origin, unanswered(message), CallerAccess()), verb="read")
    assert said in line
    assert ("`eddyline up`" in line) == (origin == "data")


def test_nothing_answers_at_an_address_that_was_given(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verb, "CONNECT_S", 0.5)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and listens to nobody
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert main(["topic", "list", "--cluster", address]) == 1
    said = capsys.readouterr().err
    assert f"NOT_READY: no role answers at {address}, which --cluster names: " in said
    assert "eddyline up" not in said


def test_unreachable_store_of_a_topic_is_named() -> None:
    error = with_store_name(unanswered(REFUSED), "t", ("s:1",), CallerAccess())
    assert error.message == "store at s:1: Failed to connect: refused"
    assert with_store_name(NotReady("the store is recovering"), "t", ("s:1",), CallerAccess()).message == (
        "the store is recovering"
    )
    of_several = with_store_name(NotReady("the store is recovering"), "t", ("s:1", "s:2"), CallerAccess())
    assert re.fullmatch(r"store/[01] at s:[12]: the store is recovering", of_several.message)
    assert "topics of other stores are served" in failure_line(of_several)


def test_outage_names_the_role_of_the_address_in_grpcs_text() -> None:
    assert describe_error(unanswered(REFUSED), TOPOLOGY) == "ingest at 10.0.0.7:7702: Failed to connect: refused"
    assert describe_error(NotReady(REFUSED), TOPOLOGY) == REFUSED
    assert describe_error(unanswered("Socket closed"), TOPOLOGY) == "Socket closed"
    assert plain_text("no message for 15 s") == "no message for 15 s"


ADVICE: Final = " ".join(table._WHAT_TO_DO.values())
ADVISED: Final = sorted(set(re.findall(r"`eddyline ((?:topic|source|fold|kv|key) [a-z]+|[a-z-]+)", ADVICE)))


@pytest.mark.parametrize("verb", ADVISED)
def test_no_verb_advises_itself(verb: str) -> None:
    for reason, advice in table._WHAT_TO_DO.items():
        error = type("Made", (EddylineError,), {"reason": reason})("said")
        line = failure_line(error, verb=verb)
        assert not re.search(rf"`eddyline {verb}[ `]", line)
        assert not re.search(r"said \((?:or |[;,])|[;,] ?\)$", line), advice


@pytest.mark.parametrize(
    ("line", "verb"),
    [("topic get t", "topic get"), ("status", "status"), ("kv put b k v", "kv put"), ("read t", "read")],
)
def test_a_verb_knows_its_whole_name(line: str, verb: str) -> None:
    assert parse_arguments(line.split()).verb == verb
