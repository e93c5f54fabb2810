"""`eddyline up --nats`: its options are checked before anything starts, and no output contains a password."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import pytest

from eddyline.cli.errors import EXIT_USAGE, CommandError
from eddyline.cli.nats.given import URL_VARIABLE, add_nats_arguments, check_answers, given_nats, without_login
from tests.support.cluster.processes import free_address

if TYPE_CHECKING:
    from pathlib import Path

    from eddyline.cli.nats.given import GivenNats


def given(*words: str) -> GivenNats | None:
    parser = argparse.ArgumentParser()
    add_nats_arguments(parser)
    return given_nats(parser.parse_args(words))


def test_nothing_given_is_a_nats_of_the_clusters_own() -> None:
    assert given() is None


@pytest.mark.parametrize(
    ("url", "addresses"),
    [
        ("nats://127.0.0.1:4333", "127.0.0.1:4333"),
        ("nats.example", "nats.example:4222"),
        ("tls://me:p%40ss@a, nats://me:p%40ss@b:1", "a:4222,b:1"),
        ("nats://[::1]:7", "[::1]:7"),
    ],
)
def test_addresses_are_those_of_the_url_without_its_user(url: str, addresses: str) -> None:
    found = given("--nats", url)
    assert found is not None
    assert found.addresses == addresses
    assert found.variables == {URL_VARIABLE: url}
    assert "p%40ss" not in repr(found)


def test_files_become_settings_of_ingest(tmp_path: Path) -> None:
    files = {name: tmp_path / name for name in ("creds", "ca", "cert", "key", "nkey")}
    for file in files.values():
        file.write_text("x")
    words = [word for name, file in files.items() for word in (f"--nats-{name}", str(file))]
    found = given("--nats", "tls://a", *words)
    assert found is not None
    assert found.variables == {
        URL_VARIABLE: "tls://a",
        "EDDYLINE_INGEST_NATS_CREDS_FILE": str(files["creds"]),
        "EDDYLINE_INGEST_NATS_NKEY_FILE": str(files["nkey"]),
        "EDDYLINE_INGEST_NATS_TLS_CA": str(files["ca"]),
        "EDDYLINE_INGEST_NATS_TLS_CERT": str(files["cert"]),
        "EDDYLINE_INGEST_NATS_TLS_KEY": str(files["key"]),
    }


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--nats-creds", "/dev/null"), "--nats-creds"),
        (("--nats", "http://me:hush@a"), "--nats"),
        (("--nats", "nats://me:hu/sh@a"), "--nats"),
        (("--nats", ","), "--nats"),
        (("--nats", "a:port"), "--nats"),
        (("--nats", "a", "--nats-ca", "/nowhere/ca.pem"), "/nowhere/ca.pem"),
        (("--nats", "a", "--nats-key", "/dev/null"), "--nats-cert"),
    ],
)
def test_impossible_settings_are_refused_in_one_line(words: tuple[str, ...], named: str) -> None:
    with pytest.raises(CommandError) as refused:
        given(*words)
    assert refused.value.exit_code == EXIT_USAGE
    assert named in str(refused.value)
    assert "sh@" not in str(refused.value)
    assert "hush" not in str(refused.value)


async def test_servers_of_which_none_answers_are_named_with_the_reason() -> None:
    first, second = free_address(), free_address()
    with pytest.raises(CommandError, match="no NATS server answers") as refused:
        await check_answers(f"{first},{second}")
    assert f"{first}: " in str(refused.value)
    assert f"{second}: " in str(refused.value)


def test_settings_are_printed_without_credentials() -> None:
    assert without_login("nats://me:p@a,tls://token@b:1") == "nats://***@a,tls://***@b:1"
    assert without_login("/etc/a@b") == "/etc/a@b"
