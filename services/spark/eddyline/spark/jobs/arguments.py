"""What the jobs that read topics are asked in common, as the options of a read."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from eddyline.spark.access import AccessOptions
from eddyline.spark.jobs.out_dir import absolute
from eddyline.spark.options import PATIENCE_S, parse_options, with_access

if TYPE_CHECKING:
    import argparse

    from eddyline.spark.options import ReadOptions

_FILES: Final = {
    "key_file": "file with the key's secret ($EDDYLINE_KEY_FILE, else the secret in $EDDYLINE_KEY)",
    "tls_ca": "certificates of the authority that signed the cluster's ($EDDYLINE_TLS_CA)",
    "tls_cert": "own certificate, where the cluster asks for one ($EDDYLINE_TLS_CERT)",
    "tls_key": "its key ($EDDYLINE_TLS_KEY)",
}


def add_topics(parser: argparse.ArgumentParser) -> None:
    """Which topics, and how long a store may be away."""
    add_access(parser)
    parser.add_argument("--topic", required=True, help="a topic, several with commas, or a prefix with * at its end")
    parser.add_argument(
        "--patience", type=int, default=PATIENCE_S, metavar="SECONDS", help="how long a store may be away (%(default)s)"
    )


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
    """What `add_access` was given."""
    return AccessOptions(
        tls="true" if arguments.tls else "", **{name: str(getattr(arguments, name)) for name in _FILES}
    )


def add_out(parser: argparse.ArgumentParser) -> None:
    """Where to."""
    parser.add_argument(
        "--out",
        required=True,
        type=absolute,
        help="a folder that all executors see, or a URI that pyarrow.fs knows (s3://bucket/folder)",
    )


def read_options(arguments: argparse.Namespace, **more: object) -> ReadOptions:
    """The read that is asked for; `more` are options of the data source, None = not given.

    Raises:
        EddylineError: as `parse_options`, by the data source's names.
    """
    named = {
        "store": ",".join(arguments.store),
        "topic": arguments.topic,
        "patienceSeconds": arguments.patience,
        **asked_of(arguments).as_options(),
        **more,
    }
    options = parse_options({name: str(value) for name, value in named.items() if value is not None})
    return with_access(options, os.environ)
