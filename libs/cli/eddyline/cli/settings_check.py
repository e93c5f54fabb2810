"""What can be known to be wrong, or without effect, before any part is started."""

from __future__ import annotations

import json
import tomllib
from typing import TYPE_CHECKING

from eddyline.cli.failure import EXIT_USAGE, CommandError
from eddyline.core.role_access import RoleAccess
from eddyline.core.settings import SettingsError, load_common

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def check_sources_file(path: Path | None) -> None:
    """Read the TOML of --sources; what its tables say is for ingest to judge.

    Raises:
        CommandError: it cannot be read, or is not TOML.
    """
    if path is None:
        return
    try:
        tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}", exit_code=EXIT_USAGE) from None
    except ValueError as error:
        raise CommandError(
            f"{path} is not TOML: {error}", "write [[source]] tables with name, bucket, topic", exit_code=EXIT_USAGE
        ) from None


def check_shards(data: Path, asked: int) -> None:
    """Refuse a folder whose stores are another number of shards: a topic's store is found by it, so it stays as it is.

    Raises:
        CommandError: it says how many there are.
    """
    try:
        line = (data / "store" / "identity").read_bytes().partition(b"\n")[0]
        made_with = json.loads(line)["shard_count"]
    except (OSError, ValueError, KeyError, TypeError):
        return  # a new one, or one that the store itself refuses
    if made_with != asked:
        raise CommandError(
            f"{data} has its topics on {made_with} store{'' if made_with == 1 else 's'}, and --shards {asked} is asked for: "
            "their number is for a folder's life",
            f"give --shards {made_with}, or another folder with --data",
            exit_code=EXIT_USAGE,
        )


def overridden(environ: Mapping[str, str], variables: Mapping[str, str]) -> dict[str, str]:
    """Settings of the environment that a part will not have: the name, and what it has instead."""
    return {name: value for name, value in variables.items() if environ.get(name, value) != value}


def roles_access(environ: Mapping[str, str]) -> RoleAccess:
    """Access of the roles of a local cluster: what they show to each other is what they are asked with whether they serve.

    Raises:
        CommandError: they would not start as they are set.
    """
    try:
        return RoleAccess(load_common(environ))
    except SettingsError as error:
        raise CommandError(str(error), exit_code=EXIT_USAGE) from None
