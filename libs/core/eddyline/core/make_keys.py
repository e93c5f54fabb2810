"""The keys of a new cluster, in a directory: `python -m eddyline.core.make_keys DIRECTORY`.

    keys.toml      who may call: the roles, an owner of everything, Spark's jobs (EDDYLINE_COMMON_KEYS_FILE)
    role.key       what the roles show each other (EDDYLINE_COMMON_KEY_FILE)
    metrics.key    what Prometheus shows (EDDYLINE_COMMON_METRICS_KEY_FILE)
    owner.key      what the owner shows: every scope of a caller, all names
    spark.key      what jobs show: read and write

For docker-compose, which runs it before the roles, and for a Kubernetes Secret. More keys are made by `eddyline key new`.
Invariant (I1): a directory that has keys.toml is left as it is; it is written last, so a broken-off run is begun anew.
Secrets are in these files alone, which only their owner reads; Prometheus's own user reads its key.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from eddyline.core.access_keys import digest_of, new_secret, parse_keys

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


def make_keys(directory: Path) -> bool:
    """Make the files; False = they are there already.

    Raises:
        OSError.
    """
    keys = directory / KEYS_FILE
    if keys.exists():
        return False
    directory.mkdir(parents=True, exist_ok=True)
    secrets = {name: new_secret() for name in SCOPES}
    tables = [
        f'[[key]]\nname = "{name}"\nsha256 = "{digest_of(secrets[name]).hex()}"\nscopes = {list(scopes)}\n'
        for name, scopes in SCOPES.items()
    ]
    content = "\n".join(tables)
    parse_keys(content)
    for name, secret in secrets.items():
        _write(directory / f"{name}.key", secret, OWNER_READS)
    _write(directory / METRICS_KEY, new_secret(), ALL_READ)
    _write(keys, content.rstrip("\n"), OWNER_READS)
    return True


def _write(path: Path, content: str, mode: int) -> None:
    """Whole, or not at all."""
    draft = path.with_name(f".{path.name}.draft")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as file:
        file.write(content + "\n")
        file.flush()
        os.fchmod(file.fileno(), mode)
        os.fsync(file.fileno())
    draft.replace(path)


def main(arguments: Sequence[str]) -> int:
    """Make them; the exit code."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        sys.stderr.write("usage: python -m eddyline.core.make_keys DIRECTORY\n")
        return 2
    try:
        made = make_keys(Path(arguments[0]))
    except OSError as error:
        sys.stderr.write(f"{arguments[0]}: {error.strerror or error}\n")
        return 1
    sys.stdout.write(f"keys {'made' if made else 'are there'} in {arguments[0]}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
