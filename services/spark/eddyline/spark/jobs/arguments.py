"""What the jobs that read topics are asked in common, as the options of a read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eddyline.spark.jobs.out_dir import absolute
from eddyline.spark.options import PATIENCE_S, parse_options

if TYPE_CHECKING:
    import argparse

    from eddyline.spark.options import ReadOptions


def add_topics(parser: argparse.ArgumentParser) -> None:
    """Which topics, and how long a store may be away."""
    parser.add_argument("--topic", required=True, help="a topic, several with commas, or a prefix with * at its end")
    parser.add_argument(
        "--patience", type=int, default=PATIENCE_S, metavar="SECONDS", help="how long a store may be away (%(default)s)"
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
        **more,
    }
    return parse_options({name: str(value) for name, value in named.items() if value is not None})
