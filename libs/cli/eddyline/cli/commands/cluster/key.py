"""`eddyline key new`: a secret, shown once or written to a file, and its table for the keys file. It calls nobody."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from eddyline.cli.command import add_group, add_verb
from eddyline.cli.errors import EXIT_OK, CommandError
from eddyline.core.auth.grant import Scope
from eddyline.core.auth.keys_file import MalformedKeys, digest_of, new_secret, parse_keys

if TYPE_CHECKING:
    from eddyline.cli.command import Context, Subparsers

OWNER_ONLY: Final = 0o600
_MORE: Final = """

the secret is shown once, or written to a new file that only its owner reads; roles hold its digest. They take a changed
keys file within a second."""


def add(subparsers: Subparsers) -> None:
    verbs = add_group(subparsers, "key", what="Make keys for a keys file.")
    parser = add_verb(
        verbs,
        "new",
        what="Make a key: writes its secret, or prints it once, and writes or prints its table for the keys file.",
        example="eddyline key new orders-writer --scopes read,write --prefixes orders. --keys-file keys.toml\n"
        "eddyline key new cluster --scopes role --keys-file keys.toml --secret-file cluster.key",
        run=new,
        finds_cluster=False,
        more=_MORE,
    )
    parser.add_argument("name", metavar="NAME", help="name of the caller, also in the audit log")
    parser.add_argument(
        "--scopes",
        required=True,
        type=_words,
        metavar="SCOPES",
        help=f"with commas, of {', '.join(scope.value for scope in Scope)}; role is for the cluster's own roles",
    )
    parser.add_argument(
        "--prefixes",
        default=[],
        type=_words,
        metavar="PREFIXES",
        help="names of topics, sources and buckets that it covers begin so, with commas (default: all names)",
    )
    parser.add_argument("--keys-file", type=Path, metavar="FILE", help="add the table to this file, created if missing")
    parser.add_argument(
        "--secret-file",
        type=Path,
        metavar="FILE",
        help="write the secret to this file, which must not be there yet (mode 0600)",
    )


async def new(arguments: argparse.Namespace, context: Context) -> int:
    """Make one."""
    secret = new_secret()
    table = _table(arguments.name, digest_of(secret).hex(), arguments.scopes, arguments.prefixes)
    path: Path | None = arguments.keys_file
    before = _read(path) if path is not None else ""
    whole = f"{before.rstrip()}\n\n{table}" if before.strip() else table
    try:
        parse_keys(whole)
    except MalformedKeys as error:
        where = f"{path}: " if path is not None else ""
        raise CommandError(f"{where}{error}", "nothing was written") from None
    secret_path: Path | None = arguments.secret_file
    _write_both(secret_path, secret, path, whole)
    said = [secret if secret_path is None else f"{arguments.name}: the secret is in {secret_path}"]
    said += [] if path is not None else [table.rstrip()]
    fields: dict[str, str | None] = {
        "name": arguments.name,
        "secret": secret if secret_path is None else None,
        "table": table,
        "keys_file": _shown(path),
        "secret_file": _shown(secret_path),
    }
    context.output.print_result("\n\n".join(said), fields)
    return EXIT_OK


def _write_both(secret_path: Path | None, secret: str, path: Path | None, whole: str) -> None:
    if secret_path is not None:
        _write_secret(secret_path, secret)
    try:
        if path is not None:
            _write(path, whole)
    except CommandError:
        if secret_path is not None:
            secret_path.unlink(missing_ok=True)
        raise


def _shown(path: Path | None) -> str | None:
    return str(path) if path is not None else None


def _write_secret(path: Path, secret: str) -> None:
    """Make the file; what is there, be it a link to nothing, stays as it is."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWNER_ONLY)
    except FileExistsError:
        advice = "nothing was written; give another --secret-file, or remove that one if its key is unused"
        raise CommandError(f"{path} exists already", advice) from None
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror or error}", "nothing was written") from None
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), OWNER_ONLY)
            file.write(secret + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        path.unlink(missing_ok=True)
        raise CommandError(f"{path} cannot be written: {error.strerror or error}", "nothing was written") from None


def _table(name: str, digest: str, scopes: list[str], prefixes: list[str]) -> str:
    lines = ["[[key]]", f"name = {_quoted(name)}", f"sha256 = {_quoted(digest)}", f"scopes = {_list(scopes)}"]
    if prefixes:
        lines.append(f"prefixes = {_list(prefixes)}")
    return "\n".join(lines) + "\n"


def _list(words: list[str]) -> str:
    return "[" + ", ".join(map(_quoted, words)) + "]"


def _quoted(word: str) -> str:
    # TOML reads what JSON writes, and nothing in it becomes another line.
    return json.dumps(word)


def _words(text: str) -> list[str]:
    found = [word.strip() for word in text.split(",") if word.strip()]
    if not found:
        raise argparse.ArgumentTypeError("it is empty")
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{path} cannot be read: {error}", "nothing was written") from None


def _write(path: Path, text: str) -> None:
    """Replace the file whole, so that a role never reads half of it; its mode stays."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        mode = path.stat().st_mode & 0o777 if path.exists() else OWNER_ONLY
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWNER_ONLY), "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise CommandError(f"{path} cannot be written: {error.strerror or error}", "nothing was written") from None
