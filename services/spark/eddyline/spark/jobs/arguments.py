"""Arguments shared by the jobs that read topics, as the options of a read."""

from __future__ import annotations

import argparse
import os
import re
from typing import TYPE_CHECKING, Final

from eddyline.core.errors import EddylineError
from eddyline.export.out_dir import absolute
from eddyline.spark.jobs.job import JobError
from eddyline.spark.options.access import AccessOptions
from eddyline.spark.options.read import PATIENCE_S, SHARES_MAX, parse_options, with_access
from eddyline.spark.options.values import whole_number
from eddyline.spark.options.write import PATIENCE_S_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

    from eddyline.spark.options.read import ReadOptions

_FILES: Final = {
    "key_file": "file with the key's secret ($EDDYLINE_KEY_FILE, else the secret in $EDDYLINE_KEY)",
    "tls_ca": "certificates of the authority that signed the cluster's ($EDDYLINE_TLS_CA)",
    "tls_cert": "own certificate, where the cluster asks for one ($EDDYLINE_TLS_CERT)",
    "tls_key": "its key ($EDDYLINE_TLS_KEY)",
}
_FLAGS: Final = {
    "patienceSeconds": "--patience",
    "asOfSeq": "--as-of-seq",
    "asOfTimestamp": "--as-of-time",
    "asOfPartitions": "--partitions",
    "maxRecordsPerPartition": "--records-per-file",
    "maxBytesPerPartition": "--bytes-per-file",
    "onGap": "--on-gap",
    "keyFile": "--key-file",
    "tlsCa": "--tls-ca",
    "tlsCert": "--tls-cert",
    "tlsKey": "--tls-key",
}
"""The job arguments for options of the data source."""


def whole(low: int, high: int) -> Callable[[str], int]:
    """The type of an argument: a whole number from `low` to `high`, both inclusive."""

    def parsed(text: str) -> int:
        try:
            return whole_number("", text, low, high)
        except EddylineError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {low} to {high}") from None

    return parsed


def add_patience(parser: argparse.ArgumentParser) -> None:
    """How long a store may be away."""
    parser.add_argument(
        "--patience",
        type=whole(1, PATIENCE_S_MAX),
        default=PATIENCE_S,
        metavar="SECONDS",
        help="how long a store may be away (%(default)s)",
    )


def add_partitions(parser: argparse.ArgumentParser, what: str) -> None:
    """How many tasks share the keys of a fold."""
    parser.add_argument("--partitions", type=whole(1, SHARES_MAX), help=f"{what} (as memory needs)")


def add_topics(parser: argparse.ArgumentParser) -> None:
    """Which topics, and how long a store may be away."""
    add_access(parser)
    parser.add_argument("--topic", required=True, help="a topic, several with commas, or a prefix with * at its end")
    add_patience(parser)


def add_access(parser: argparse.ArgumentParser) -> None:
    """How to get in. There is no flag for a secret itself: whoever lists processes would read it."""
    parser.add_argument(
        "--tls",
        action="store_true",
        help="use TLS, by the system's authorities unless --tls-ca is given",
    )
    for name, what in _FILES.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}", default="", metavar="FILE", help=f"{what}, read on the driver"
        )


def asked_of(arguments: argparse.Namespace) -> AccessOptions:
    """The access options of `add_access`."""
    return AccessOptions(
        tls="true" if arguments.tls else "", **{name: str(getattr(arguments, name)) for name in _FILES}
    )


def add_out(parser: argparse.ArgumentParser) -> None:
    """The output path or URI."""
    parser.add_argument(
        "--out",
        required=True,
        type=absolute,
        help="a folder that all executors see, or a URI that pyarrow.fs knows (s3://bucket/folder)",
    )


def read_options(arguments: argparse.Namespace, **more: object) -> ReadOptions:
    """The requested read; `more` are options of the data source, None = not given.

    Raises:
        JobError: as `parse_options`, by the names of the command line, which is wrong.
    """
    named = {
        "store": ",".join(arguments.store),
        "topic": arguments.topic,
        "patienceSeconds": arguments.patience,
        **asked_of(arguments).as_options(),
        **more,
    }
    try:
        options = parse_options({name: str(value) for name, value in named.items() if value is not None})
        return with_access(options, os.environ)
    except EddylineError as error:
        raise JobError(_in_flags(error.message), usage=True, reason=error.reason) from error


def _in_flags(message: str) -> str:
    by_flags = re.sub("|".join(_FLAGS), lambda found: _FLAGS[found[0]], message)
    return re.sub(r"^option (?:--)?([\w-]+):", r"--\1:", by_flags)
