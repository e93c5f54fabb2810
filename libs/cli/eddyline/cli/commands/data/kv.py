"""`eddyline kv`: writes into a NATS KV bucket: put, create, update, delete, purge; `get` is in `kv_get.py`.

A call is never repeated: where its outcome is unknown the failure says so, and only its caller knows what a second write
would harm.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypedDict

from eddyline.cli.command import add_group, add_verb, connected, limit
from eddyline.cli.commands.data import kv_get
from eddyline.cli.errors import EXIT_OK
from eddyline.cli.terminal.output import Json, put_bytes, version_field
from eddyline.cli.terminal.stdin import DASH_REFUSED, stdin_value, value_of
from eddyline.cli.terminal.units import duration_ms
from eddyline.core.errors import ApplyPending, WriteUnknown
from eddyline.core.records.record import SOURCE_DATA_META_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from eddyline.cli.command import Context, RunVerb, Subparsers
    from eddyline.client.admin.kv import Kv, KvWriteResult

TIMEOUT_MS_DEFAULT: Final = 30_000
TIMEOUT_MS_MAX: Final = 30_000
"""The contract's own bound on a call."""
_MORE: Final = """

JSON out (-o json): bucket, key, revision, stream_identity (hex), version, applied_sources. Where it is
stopped (Ctrl-C): bucket, key, reason (APPLY_PENDING = written, at revision; WRITE_UNKNOWN = it may be), message."""


def add(subparsers: Subparsers) -> None:
    verbs = add_group(
        subparsers,
        "kv",
        what="Write into NATS KV buckets, with NATS's own compare-and-set; get the copied values.",
    )
    kv_get.add(verbs)
    parser = _add(verbs, "put", "Write a value, with or without an existing one.", _PUT, put)
    _add_value(parser)
    parser = _add(verbs, "create", "Write a value if the key is not live.", _CREATE, create)
    _add_value(parser)
    parser.add_argument(
        "--ttl",
        type=duration_ms,
        default=0,
        metavar="DURATION",
        help="the value expires by itself, after 1s at least; the bucket must allow it (default: never)",
    )
    parser = _add(verbs, "update", "Write a value if the key's last revision is the given one.", _UPDATE, update)
    _add_value(parser)
    parser.add_argument("--revision", type=limit, required=True, metavar="N", help="revision the key has now")
    parser = _add(verbs, "delete", "Delete a key; the bucket's history keeps older values.", _DELETE, delete)
    parser.add_argument("--revision", type=limit, default=0, metavar="N", help="only if the key has this revision")
    parser = _add(verbs, "purge", "Delete a key and its older values in the bucket.", _PURGE, purge)
    parser.add_argument("--revision", type=limit, default=0, metavar="N", help="only if the key has this revision")
    parser.add_argument(
        "--ttl",
        type=duration_ms,
        default=0,
        metavar="DURATION",
        help="time after which the marker expires, too; the bucket must allow it (default: never)",
    )


_PUT: Final = """
eddyline kv put certs a.example.org 'the value'
eddyline kv put certs a.example.org --file cert.pem --wait-applied
printf %s "$VALUE" | eddyline kv put certs a.example.org"""
_CREATE: Final = "eddyline kv create locks leader me --ttl 30s"
_UPDATE: Final = "eddyline kv update certs a.example.org 'another value' --revision 17"
_DELETE: Final = "eddyline kv delete certs a.example.org --wait-applied"
_PURGE: Final = "eddyline kv purge certs a.example.org"


class _Options(TypedDict):
    """The options that every write of the client takes."""

    wait_applied: bool
    source: str
    timeout_s: float
    on_written: Callable[[int], None]


async def put(arguments: argparse.Namespace, context: Context) -> int:
    """Run `kv put`."""
    value = await _value(arguments)
    return await _write(
        arguments, context, "put", lambda kv, key, options: kv.put(arguments.bucket, key, value, **options)
    )


async def create(arguments: argparse.Namespace, context: Context) -> int:
    """Run `kv create`."""
    value = await _value(arguments)

    def call(kv: Kv, key: bytes, options: _Options) -> Awaitable[KvWriteResult]:
        return kv.create(arguments.bucket, key, value, ttl_ms=arguments.ttl, **options)

    return await _write(arguments, context, "created", call)


async def update(arguments: argparse.Namespace, context: Context) -> int:
    """Run `kv update`."""
    value = await _value(arguments)

    def call(kv: Kv, key: bytes, options: _Options) -> Awaitable[KvWriteResult]:
        return kv.update(arguments.bucket, key, value, expected_revision=arguments.revision, **options)

    return await _write(arguments, context, "updated", call)


async def delete(arguments: argparse.Namespace, context: Context) -> int:
    """Run `kv delete`."""

    def call(kv: Kv, key: bytes, options: _Options) -> Awaitable[KvWriteResult]:
        return kv.delete(arguments.bucket, key, expected_revision=arguments.revision, **options)

    return await _write(arguments, context, "deleted", call)


async def purge(arguments: argparse.Namespace, context: Context) -> int:
    """Run `kv purge`."""

    def call(kv: Kv, key: bytes, options: _Options) -> Awaitable[KvWriteResult]:
        return kv.purge(arguments.bucket, key, expected_revision=arguments.revision, ttl_ms=arguments.ttl, **options)

    return await _write(arguments, context, "purged", call)


async def _write(
    arguments: argparse.Namespace,
    context: Context,
    done: str,
    call: Callable[[Kv, bytes, _Options], Awaitable[KvWriteResult]],
) -> int:
    """Write one key and print the result; `done` is the verb's past participle."""
    async with connected(arguments, context) as client:
        with _outcome_when_stopped(arguments, context) as stop:
            options = _Options(
                wait_applied=arguments.wait_applied,
                source=arguments.source,
                timeout_s=arguments.timeout / 1000,
                on_written=stop.note,
            )
            written = await call(client.kv, os.fsencode(arguments.key), options)
    return _print_written(arguments, context, done, written)


class _Stop:
    """The known outcome of a write when its verb is stopped."""

    def __init__(self) -> None:
        self.revision = 0

    def note(self, revision: int) -> None:
        """Take note of the revision at which NATS stored the value."""
        self.revision = revision


@contextmanager
def _outcome_when_stopped(arguments: argparse.Namespace, context: Context) -> Iterator[_Stop]:
    """A write; if a signal stops it, print its known outcome."""
    stop = _Stop()
    try:
        yield stop
    except asyncio.CancelledError:
        fields: dict[str, Json] = {"bucket": arguments.bucket}
        put_bytes(fields, "key", os.fsencode(arguments.key))
        if stop.revision:
            text = f"written at revision {stop.revision}, not applied yet: do not repeat it"
            fields |= {"reason": ApplyPending.reason, "revision": stop.revision}
        else:
            text = "stopped before NATS answered: it may be written; read the key before it is written again"
            fields |= {"reason": WriteUnknown.reason}
        context.output.print_notice(text, fields | {"message": text})
        raise


def contradiction(arguments: argparse.Namespace) -> str:
    """The contradiction among the arguments; empty = none."""
    if arguments.source and not arguments.wait_applied:
        return "--source needs --wait-applied: give both"
    if getattr(arguments, "value", None) is not None and arguments.file is not None:
        return "a VALUE or --file, not both"
    if getattr(arguments, "value", None) == "-":
        return DASH_REFUSED
    return ""


def _add(verbs: Subparsers, name: str, what: str, example: str, run: RunVerb) -> argparse.ArgumentParser:
    parser = add_verb(verbs, name, what=what, example=example, run=run, more=_MORE)
    parser.set_defaults(contradiction=contradiction)
    parser.add_argument("bucket", metavar="BUCKET", help="NATS KV bucket")
    parser.add_argument("key", metavar="KEY", help="letters, digits and -_=./")
    parser.add_argument(
        "--wait-applied", action="store_true", help="return once the topics that copy the bucket have the write"
    )
    parser.add_argument("--source", default="", metavar="NAME", help="wait for this source alone (default: all)")
    parser.add_argument(
        "--timeout",
        type=_timeout_ms,
        default=TIMEOUT_MS_DEFAULT,
        metavar="DURATION",
        help="time for the write and the wait, at most 30s (default: 30s)",
    )
    return parser


def _add_value(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("value", metavar="VALUE", nargs="?", help="default: --file, else all of standard input")
    parser.set_defaults(optional=("value", None))
    parser.add_argument("--file", type=Path, metavar="FILE", help="the value is this file's bytes; - = standard input")


def _timeout_ms(text: str) -> int:
    time_ms = duration_ms(text)
    if not 1 <= time_ms <= TIMEOUT_MS_MAX:
        raise argparse.ArgumentTypeError(f"{text} is not within 1ms to 30s")
    return time_ms


async def _value(arguments: argparse.Namespace) -> bytes:
    if arguments.value is not None:
        value: str = arguments.value
        return os.fsencode(value)
    if arguments.file is None:
        return await stdin_value(SOURCE_DATA_META_BYTES_MAX)
    return await value_of(arguments.file, SOURCE_DATA_META_BYTES_MAX)


def _print_written(arguments: argparse.Namespace, context: Context, done: str, written: KvWriteResult) -> int:
    applied = f", applied by {', '.join(written.applied_sources)}" if written.applied_sources else ""
    sources: list[Json] = list(written.applied_sources)
    fields: dict[str, Json] = {"bucket": arguments.bucket}
    put_bytes(fields, "key", os.fsencode(arguments.key))
    fields |= {
        "revision": written.revision,
        "stream_identity": written.stream_identity.hex(),
        "version": version_field(written.version),
        "applied_sources": sources,
    }
    context.output.print_result(f"{done} {arguments.key} at revision {written.revision}{applied}", fields)
    return EXIT_OK
