"""Makes the keys of a new cluster, in a directory or as a Kubernetes Secret:

    python -m eddyline.core.make_keys DIRECTORY
    python -m eddyline.core.make_keys --secret NAME     # the Secret's manifest to standard output, and nothing to disk

    keys.toml      the callers: the roles, an owner of everything, Spark's jobs (EDDYLINE_COMMON_KEYS_FILE)
    role.key       key of the roles for calls to each other (EDDYLINE_COMMON_KEY_FILE)
    metrics.key    key of Prometheus (EDDYLINE_COMMON_METRICS_KEY_FILE)
    owner.key      key of the owner: every scope of a caller, all names
    spark.key      key of jobs: read and write

For docker-compose, which runs it before the roles, and for Kubernetes. `eddyline key new` makes more keys.
Invariant (I1): a directory that has keys.toml is not changed; it is written last, so an interrupted run starts over.
Secrets are only in these files, which only their owner can read (Prometheus's own user reads its key), or in that
manifest.
"""

from __future__ import annotations

import base64
import json
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from eddyline.core.auth.keys_file import digest_of, new_secret, parse_keys

if TYPE_CHECKING:
    from collections.abc import Sequence

KEYS_FILE: Final = "keys.toml"
SCOPES: Final = {
    "role": ("role",),
    "owner": ("read", "write", "delete", "admin"),
    "spark": ("read", "write"),
}
METRICS_KEY: Final = "metrics.key"
OWNER_READS: Final = 0o400
ALL_READ: Final = 0o444
_SECRET_NAME: Final = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
_USAGE: Final = "usage: python -m eddyline.core.make_keys DIRECTORY | --secret NAME\n"


def make_keys(directory: Path) -> bool:
    """Make the files; False = they exist already.

    Raises:
        OSError.
    """
    keys = directory / KEYS_FILE
    if keys.exists():
        return False
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in new_files().items():
        _write(directory / name, content, ALL_READ if name == METRICS_KEY else OWNER_READS)
    return True


def new_files() -> dict[str, str]:
    """Return the content by file name, the keys file last."""
    secrets = {name: new_secret() for name in SCOPES}
    tables = [
        f'[[key]]\nname = "{name}"\nsha256 = "{digest_of(secrets[name]).hex()}"\nscopes = {list(scopes)}\n'
        for name, scopes in SCOPES.items()
    ]
    content = "\n".join(tables)
    parse_keys(content)
    files = {f"{name}.key": secret for name, secret in secrets.items()}
    return files | {METRICS_KEY: new_secret(), KEYS_FILE: content.rstrip("\n")}


def secret_manifest(name: str) -> str:
    """Return a Secret with new keys as JSON, for `kubectl create -f -`."""
    data = {file: base64.b64encode(f"{content}\n".encode()).decode() for file, content in new_files().items()}
    return json.dumps(
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "type": "Opaque", "data": data}
    )


def _write(path: Path, content: str, mode: int) -> None:
    """Write the whole file, or none."""
    draft = path.with_name(f".{path.name}.draft")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as file:
        file.write(content + "\n")
        file.flush()
        os.fchmod(file.fileno(), mode)
        os.fsync(file.fileno())
    draft.replace(path)


def main(arguments: Sequence[str]) -> int:
    """Make the keys; return the exit code."""
    match list(arguments):
        case ["--secret", name] if _SECRET_NAME.fullmatch(name):
            sys.stdout.write(secret_manifest(name) + "\n")
            return 0
        case [directory] if not directory.startswith("-"):
            return _make_directory(directory)
        case _:
            sys.stderr.write(_USAGE)
            return 2


def _make_directory(directory: str) -> int:
    try:
        is_new = make_keys(Path(directory))
    except OSError as error:
        sys.stderr.write(f"{directory}: {error.strerror or error}\n")
        return 1
    sys.stdout.write(f"keys {'created' if is_new else 'exist already'} in {directory}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
