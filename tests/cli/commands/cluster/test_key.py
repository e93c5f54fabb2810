"""`eddyline key new`, and how commands take keys and certificates from flags and the environment."""

from __future__ import annotations

import json
import os
import stat
from argparse import Namespace
from typing import TYPE_CHECKING

import pytest

from eddyline.cli.access import access_from_args
from eddyline.cli.errors import CommandError
from eddyline.client.transport.access import ENVIRONMENT, AccessInvalid, access_of_environment, client_access
from eddyline.core.auth.grant import Scope
from eddyline.core.auth.keys_file import digest_of, parse_keys
from tests.support.certificates import Authority
from tests.support.command_line import main

if TYPE_CHECKING:
    from pathlib import Path


def made(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, str]:
    assert main(["key", "new", *words, "-o", "json"]) == 0
    found: dict[str, str] = json.loads(capsys.readouterr().out)
    return found


def test_key_new_prints_secret_once_and_a_valid_table(capsys: pytest.CaptureFixture[str]) -> None:
    found = made(capsys, "orders-writer", "--scopes", "read,write", "--prefixes", "orders.,o2.")
    grant = parse_keys(found["table"]).of_digest(digest_of(found["secret"]))
    assert grant is not None
    assert (grant.name, grant.scopes) == ("orders-writer", frozenset((Scope.READ, Scope.WRITE)))
    assert grant.prefixes == ("orders.", "o2.")
    assert found["secret"] not in found["table"]


def test_keys_are_added_to_a_file_that_only_its_owner_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "keys.toml"
    secrets = [made(capsys, name, "--scopes", "read", "--keys-file", str(path))["secret"] for name in ("a", "b")]
    ring = parse_keys(path.read_text(encoding="utf-8"))
    assert [ring.of_digest(digest_of(secret)) for secret in secrets] == list(ring.grants().values())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [child.name for child in tmp_path.iterdir()] == ["keys.toml"]


def test_a_secret_goes_to_a_new_file_that_only_its_owner_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys, path = tmp_path / "keys.toml", tmp_path / "a.key"
    words = ["key", "new", "a", "--scopes", "read", "--keys-file", str(keys), "--secret-file", str(path)]
    before = os.umask(0)
    try:
        assert main(words) == 0
    finally:
        os.umask(before)
    secret = path.read_text(encoding="utf-8").strip()
    assert secret not in capsys.readouterr().out
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert client_access(key_file=str(path)).key.metadata() == (("authorization", f"Bearer {secret}"),)
    assert parse_keys(keys.read_text(encoding="utf-8")).of_digest(digest_of(secret)) is not None
    found = made(capsys, "b", "--scopes", "read", "--secret-file", str(tmp_path / "b.key"))
    assert found["secret"] is None
    assert found["secret_file"] == str(tmp_path / "b.key")


@pytest.mark.parametrize("there", ["a file", "a link to nothing", "no folder"])
def test_a_secret_s_file_that_cannot_be_new_is_refused_and_nothing_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], there: str
) -> None:
    keys, path = tmp_path / "keys.toml", tmp_path / "a.key"
    made(capsys, "first", "--scopes", "role", "--keys-file", str(keys))
    before = keys.read_bytes()
    match there:
        case "a file":
            path.write_text("another's", encoding="utf-8")
        case "a link to nothing":
            path.symlink_to(tmp_path / "nowhere")
        case _:
            path = tmp_path / "none" / "a.key"
    assert main(["key", "new", "a", "--scopes", "read", "--keys-file", str(keys), "--secret-file", str(path)]) == 1
    assert "nothing was written" in capsys.readouterr().err
    assert keys.read_bytes() == before
    assert not (tmp_path / "nowhere").exists()
    assert not path.exists() or path.read_text(encoding="utf-8") == "another's"


def test_no_secret_s_file_is_left_where_the_keys_file_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.key"
    keys = tmp_path / "none" / "keys.toml"
    assert main(["key", "new", "a", "--scopes", "read", "--keys-file", str(keys), "--secret-file", str(path)]) == 1
    assert "nothing was written" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        ("a", "--scopes", "reed"),
        ("a b", "--scopes", "read"),
        ('a"\nscopes = ["role"]\n#', "--scopes", "read"),
        ("é", "--scopes", "read"),
        ("a", "--scopes", "read", "--prefixes", "*"),
    ],
)
def test_invalid_key_request_leaves_the_file_unchanged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    path = tmp_path / "keys.toml"
    made(capsys, "first", "--scopes", "role", "--keys-file", str(path))
    before = path.read_bytes()
    assert main(["key", "new", *words, "--keys-file", str(path)]) == 1
    assert "nothing was written" in capsys.readouterr().err
    assert path.read_bytes() == before


def test_a_name_that_is_there_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "keys.toml"
    made(capsys, "a", "--scopes", "read", "--keys-file", str(path))
    assert main(["key", "new", "a", "--scopes", "read", "--keys-file", str(path)]) == 1
    assert "defined twice" in capsys.readouterr().err


def test_flags_go_before_the_environment(tmp_path: Path) -> None:
    first, second = tmp_path / "1.key", tmp_path / "2.key"
    first.write_text("one\n", encoding="utf-8")
    second.write_text("two\n", encoding="utf-8")
    given = Namespace(key_file=str(second), tls_ca="", tls_cert="", tls_key="")
    environ = {"EDDYLINE_KEY": "three", "EDDYLINE_KEY_FILE": str(first)}
    assert access_from_args(given, environ).key.metadata() == (("authorization", "Bearer two"),)
    assert access_of_environment(environ).key.metadata() == (("authorization", "Bearer three"),)
    del environ["EDDYLINE_KEY"]
    assert access_of_environment(environ).key.metadata() == (("authorization", "Bearer one"),)
    assert access_of_environment({}).key.metadata() == ()


def test_any_tls_option_turns_tls_on(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    assert client_access().tls is None
    assert client_access(tls=True).tls is not None
    assert client_access(tls_ca=str(authority.own.certificate)).tls is not None
    assert access_of_environment({"EDDYLINE_TLS": "yes"}).tls is not None
    assert set(ENVIRONMENT) == {"key", "key_file", "tls", "tls_ca", "tls_cert", "tls_key"}


def test_unusable_key_is_reported_without_its_secret(tmp_path: Path) -> None:
    with pytest.raises(AccessInvalid) as caught:
        client_access(key="two words of a secret")
    assert "words" not in str(caught.value)
    with pytest.raises(AccessInvalid, match="go together"):
        client_access(tls_cert="a.pem")
    with pytest.raises(CommandError, match="cannot be read"):
        access_from_args(Namespace(key_file=str(tmp_path / "no"), tls_ca="", tls_cert="", tls_key=""), {})
