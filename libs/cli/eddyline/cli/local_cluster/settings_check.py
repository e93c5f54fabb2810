"""Settings that are wrong or without effect, found before any part is started."""

from __future__ import annotations

import json
import tomllib
from typing import TYPE_CHECKING

from eddyline.cli.access import access_from_args
from eddyline.cli.errors import EXIT_USAGE, CommandError
from eddyline.core.auth.caller_channel import CallerAccess, CallerKey
from eddyline.core.auth.role import RoleAccess
from eddyline.core.runtime.settings import COMMON_PREFIX, SettingsError, load_common

if TYPE_CHECKING:
    import argparse
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
        tomllib.loads(path.read_text(encoding="utf-8-sig"))
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
            f"{data} has its topics on {made_with} store{'' if made_with == 1 else 's'}, but --shards is {asked}: "
            "the number cannot change in a folder",
            f"give --shards {made_with}, or another folder with --data",
            exit_code=EXIT_USAGE,
        )


def overridden(environ: Mapping[str, str], variables: Mapping[str, str]) -> dict[str, str]:
    """Settings of the environment that a part will not have: the name, and what it has instead."""
    return {name: value for name, value in variables.items() if environ.get(name, value) != value}


def roles_access(environ: Mapping[str, str]) -> RoleAccess:
    """Access of the roles of a local cluster: the readiness checks use the key and certificates that the roles use among
    themselves.

    Raises:
        CommandError: they would not start as they are set.
    """
    try:
        return RoleAccess(load_common(environ))
    except SettingsError as error:
        raise CommandError(str(error), exit_code=EXIT_USAGE) from None


def client_of_own(arguments: argparse.Namespace, environ: Mapping[str, str]) -> CallerAccess:
    """Access of a verb to the cluster that it runs itself: key and certificates if its roles require them.

    Raises:
        CommandError: they will ask for what is not given, or it cannot be used.
    """
    try:
        common = load_common(environ)
    except SettingsError as error:
        raise CommandError(str(error), exit_code=EXIT_USAGE) from None
    if not (common.keys_file or common.tls_cert):
        return CallerAccess()
    given = access_from_args(arguments, environ)
    if common.tls_cert and given.tls is None:
        raise _lacks("TLS", "TLS_CERT", "give --tls-ca, or set EDDYLINE_TLS_CA")
    if common.tls_client_ca and (given.tls is None or given.tls.certificate is None):
        advice = "give --tls-cert and --tls-key, or set EDDYLINE_TLS_CERT and EDDYLINE_TLS_KEY"
        raise _lacks("a client certificate", "TLS_CLIENT_CA", advice)
    if common.keys_file and not given.key.metadata() and not common.tls_client_ca:
        advice = "give --key-file, or set EDDYLINE_KEY_FILE or EDDYLINE_KEY; of the scopes read, write, delete, admin"
        raise _lacks("a key", "KEYS_FILE", advice)
    # What they do not ask for is not shown: it is for another cluster.
    return CallerAccess(given.key if common.keys_file else CallerKey(), given.tls if common.tls_cert else None)


def _lacks(what: str, setting: str, advice: str) -> CommandError:
    message = f"the roles of this cluster require {what}, since {COMMON_PREFIX}{setting} is set, but none is given"
    return CommandError(message, advice, exit_code=EXIT_USAGE)
