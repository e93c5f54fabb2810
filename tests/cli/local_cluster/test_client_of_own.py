"""Access of a verb to the cluster that it runs itself: only what its roles require; a missing part is an error at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from eddyline.cli.errors import EXIT_USAGE, CommandError
from eddyline.cli.local_cluster.settings_check import client_of_own
from eddyline.cli.main import parse_arguments
from tests.support.certificates import Authority

if TYPE_CHECKING:
    from pathlib import Path

    from eddyline.core.auth.caller_channel import CallerAccess

KEYS = {"EDDYLINE_COMMON_KEYS_FILE": "keys.toml"}
TLS = {"EDDYLINE_COMMON_TLS_CERT": "cluster.pem", "EDDYLINE_COMMON_TLS_KEY": "cluster.key"}
KEY = {"EDDYLINE_KEY": "a-secret-of-somebody"}


def shown(environ: dict[str, str], *words: str, verb: str = "demo") -> CallerAccess:
    return client_of_own(parse_arguments([verb, *words]), environ)


@pytest.mark.parametrize("verb", ["demo", "drill"])
def test_no_credentials_are_sent_to_roles_without_access(verb: str) -> None:
    access = shown({**KEY, "EDDYLINE_TLS_CA": "/nowhere"}, verb=verb)
    assert (access.key.metadata(), access.tls) == ((), None)


@pytest.mark.parametrize("verb", ["demo", "drill"])
def test_required_credentials_are_sent(tmp_path: Path, verb: str) -> None:
    own = Authority(tmp_path)
    flags = ["--tls-ca", str(own.own.certificate)]
    key_file = tmp_path / "my.key"
    key_file.write_text("a-secret-of-a-file", encoding="utf-8")
    access = shown({**KEYS, **KEY, "EDDYLINE_TLS": "true"}, verb=verb)
    assert (access.key.metadata(), access.tls) == ((("authorization", "Bearer a-secret-of-somebody"),), None)
    access = shown({**KEYS, **KEY}, "--key-file", str(key_file), verb=verb)
    assert access.key.metadata() == (("authorization", "Bearer a-secret-of-a-file"),)
    access = shown({**TLS, **KEY}, *flags, verb=verb)
    assert access.key.metadata() == ()
    assert access.tls is not None
    client = own.sign("a-client")
    flags += ["--tls-cert", str(client.certificate), "--tls-key", str(client.key)]
    access = shown({**KEYS, **TLS, "EDDYLINE_COMMON_TLS_CLIENT_CA": "ca.pem"}, *flags, verb=verb)
    assert access.tls is not None
    assert access.tls.certificate is not None


def test_missing_credentials_are_one_line(tmp_path: Path) -> None:
    ca = str(Authority(tmp_path).own.certificate)
    for environ, words, setting, flag in (
        (KEYS, (), "KEYS_FILE", "--key-file"),
        (TLS | KEY, (), "TLS_CERT", "--tls-ca"),
        (KEYS | TLS, ("--tls-ca", ca), "KEYS_FILE", "--key-file"),
        (KEYS | TLS | KEY | {"EDDYLINE_COMMON_TLS_CLIENT_CA": "x"}, ("--tls-ca", ca), "TLS_CLIENT_CA", "--tls-cert"),
    ):
        with pytest.raises(CommandError) as told:
            shown(environ, *words)
        assert f"EDDYLINE_COMMON_{setting} is set" in str(told.value)
        assert flag in told.value.advice
        assert told.value.exit_code == EXIT_USAGE
        assert "secret" not in str(told.value)


def test_settings_that_no_role_takes_are_refused_as_usage() -> None:
    with pytest.raises(CommandError, match="EDDYLINE_COMMON_NONE"):
        shown({"EDDYLINE_COMMON_NONE": "x"})
