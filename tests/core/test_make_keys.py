"""The keys of a new cluster: files that roles accept, made once, with secrets in no other file."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from eddyline.core import make_keys as module
from eddyline.core.auth.grant import Scope
from eddyline.core.auth.keys_file import digest_of, parse_keys, parse_secret
from eddyline.core.make_keys import main, make_keys
from eddyline.core.telemetry.http_server import read_key


def contents(directory: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in directory.iterdir()}


def test_roles_accept_the_files_and_every_key_has_its_scopes(tmp_path: Path) -> None:
    assert make_keys(tmp_path / "keys")
    made = contents(tmp_path / "keys")
    assert set(made) == {"keys.toml", "role.key", "owner.key", "spark.key", "metrics.key"}
    ring = parse_keys(made["keys.toml"])
    scopes = {}
    for name in ("role", "owner", "spark"):
        grant = ring.of_digest(digest_of(parse_secret(made[f"{name}.key"].encode())))
        assert grant is not None
        assert grant.name == name
        scopes[name] = grant.scopes
    assert scopes["role"] == {Scope.ROLE}
    assert scopes["owner"] == set(Scope) - {Scope.ROLE}
    assert scopes["spark"] == {Scope.READ, Scope.WRITE}
    assert read_key(str(tmp_path / "keys/metrics.key")) == made["metrics.key"].strip()


def test_secrets_differ_and_are_not_in_the_keys_file(tmp_path: Path) -> None:
    make_keys(tmp_path)
    made = contents(tmp_path)
    secrets = [made[name].strip() for name in made if name.endswith(".key")]
    assert len(set(secrets)) == 4
    assert not [secret for secret in secrets if secret in made["keys.toml"]]


def test_only_their_owner_reads_secrets_but_prometheus_its_own(tmp_path: Path) -> None:
    make_keys(tmp_path)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes.pop("metrics.key") == 0o444
    assert set(modes.values()) == {0o400}


def test_existing_keys_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 0
    before = contents(tmp_path)
    assert main([str(tmp_path)]) == 0
    assert contents(tmp_path) == before
    assert capsys.readouterr().out == f"keys created in {tmp_path}\nkeys exist already in {tmp_path}\n"


def test_interrupted_run_starts_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, content: str, mode: int) -> None:
        if path.name == "keys.toml":
            raise OSError(28, "No space left on device")
        write(path, content, mode)

    write = module._write
    with monkeypatch.context() as patched:
        patched.setattr(module, "_write", full)
        assert main([str(tmp_path)]) == 1
    assert main([str(tmp_path)]) == 0
    made = contents(tmp_path)
    assert parse_keys(made["keys.toml"]).of_digest(digest_of(made["role.key"].strip())) is not None


def test_secret_for_kubernetes_has_the_same_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--secret", "eddyline-access"]) == 0
    manifest = json.loads(capsys.readouterr().out)
    assert (manifest["kind"], manifest["metadata"]) == ("Secret", {"name": "eddyline-access"})
    make_keys(tmp_path)
    made = {name: base64.b64decode(content).decode() for name, content in manifest["data"].items()}
    assert set(made) == set(contents(tmp_path))
    ring = parse_keys(made["keys.toml"])
    assert {ring.of_digest(digest_of(made[f"{name}.key"].strip())).name for name in module.SCOPES} == set(module.SCOPES)  # type: ignore[union-attr]
    assert made["owner.key"] != contents(tmp_path)["owner.key"]


@pytest.mark.parametrize(
    "arguments", [[], ["a", "b"], ["--help"], ["--secret"], ["--secret", "Not A Name"], ["--secret", "a", "b"]]
)
def test_other_arguments_are_refused(arguments: list[str]) -> None:
    assert main(arguments) == 2
