"""`eddyline export`: topics to Parquet files with a manifest, as Spark's job `export` writes them, without Spark."""

from __future__ import annotations

import asyncio
import os
import threading
from dataclasses import asdict
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from eddyline.cli.access import access_from_args
from eddyline.cli.command import add_verb, limit
from eddyline.cli.errors import EXIT_FAILED, EXIT_OK, CommandError
from eddyline.cli.local_cluster.find import cluster_address
from eddyline.cli.terminal.output import print_error
from eddyline.cli.terminal.progress import ProgressReporter
from eddyline.cli.terminal.units import format_bytes, pluralize

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from eddyline.cli.command import Context, Subparsers
    from eddyline.export.run import TopicExport

STOP_S: Final = 5.0
"""A split that is being written when the command is stopped ends within a second or two as a rule; its temporary file is
removed then. A worker that does not end in this time ends with the process, and the next run removes its file."""
_MORE: Final = """

FOLDER/topic=T/day=YYYY-MM-DD/part-*.parquet hold the records, by the UTC day of their commit. For each range
FOLDER/_eddyline/T/*.manifest.json lists the files with rows, bytes and xxh3_64; it is written last. A second run goes on
behind the last manifest; after a run that failed it does the same range again, over the same names. Spark's job `export`
writes the same files, and goes on with this one's work.
The directory of a stopped store: python -m eddyline.store export --help.

Exit code 1 if a topic was not exported whole; progress and errors are on stderr. JSON (-o json), an object a topic: topic,
epoch, first_seq, end_seq (exclusive), rows, gaps, deleted, gap_rows, files, bytes, recreated_from (null, or the epoch that
was exported before), abandoned (ranges of it that were lost), error (empty = none), message."""


def add(subparsers: Subparsers) -> None:
    parser = add_verb(
        subparsers,
        "export",
        what="Write topics as Parquet files with a manifest; a second run adds the newer records.",
        example="eddyline export orders --out ./lake\neddyline export 'routes.*' --out ./lake --on-gap rows",
        run=run,
        more=_MORE,
    )
    parser.add_argument("topic", metavar="TOPIC", nargs="+", help="names, or one prefix with * at its end")
    parser.add_argument("--out", required=True, metavar="FOLDER", help="a folder, or a URI that pyarrow.fs knows")
    parser.add_argument(
        "--on-gap",
        choices=("fail", "warn", "rows"),
        default="fail",
        help="lost records end their topic, are listed in the manifest, or are rows of op GAP too (default: fail)",
    )
    parser.add_argument("--records-per-file", type=limit, metavar="N", help="most records of a file (default: 1000000)")
    parser.add_argument(
        "--patience", type=limit, default=60, metavar="SECONDS", help="how long a store may stay away (default: 60)"
    )


async def run(arguments: argparse.Namespace, context: Context) -> int:
    if find_spec("eddyline.export") is None or find_spec("pyarrow") is None:
        raise CommandError("pyarrow is not installed here", "pip install 'eddyline-cli[export]'")
    done = await _in_thread(_work(arguments, context))
    for topic in done:
        context.output.print_result(_text(topic, arguments.out), asdict(topic))
    failed = [topic for topic in done if topic.error]
    for topic in failed:
        print_error(_failure_text(topic))
    return EXIT_FAILED if failed else EXIT_OK


def _work(arguments: argparse.Namespace, context: Context) -> Callable[[threading.Event], list[TopicExport]]:
    # pyarrow, which no other verb needs
    from eddyline.export.in_process import export_topics
    from eddyline.export.out_dir import OutDir, absolute
    from eddyline.export.run import ExportSizes, WorkRefused
    from eddyline.export.split.calls import Cluster
    from eddyline.export.split.plan import RECORDS_PER_SPLIT

    addresses = cluster_address(arguments.cluster, context.environ, arguments.data).split(",")
    access = access_from_args(arguments, context.environ)
    sizes = ExportSizes(records_per_file=arguments.records_per_file or RECORDS_PER_SPLIT)
    progress = ProgressReporter(context.clock)

    def work(stop: threading.Event) -> list[TopicExport]:
        with Cluster(addresses, patience_s=arguments.patience, access=access) as cluster:
            try:
                return export_topics(
                    cluster,
                    arguments.topic,
                    OutDir(absolute(arguments.out)),
                    on_gap=arguments.on_gap,
                    sizes=sizes,
                    tell=progress.tell,
                    stop=stop,
                )
            except WorkRefused as error:
                raise CommandError(f"{error.reason}: {error}") from None
            except OSError as error:
                why = os.strerror(error.errno) if error.errno else error
                raise CommandError(
                    f"{arguments.out} cannot be written: {why}", "give another folder with --out"
                ) from None

    return work


async def _in_thread(work: Callable[[threading.Event], list[TopicExport]]) -> list[TopicExport]:
    """Do it in a thread of its own, which a stop of the command ends before its next split."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[list[TopicExport]] = loop.create_future()
    stop = threading.Event()
    over = asyncio.Event()

    def settle(result: list[TopicExport] | None, error: Exception | None) -> None:
        over.set()
        if ended.done():
            return
        if error is not None:
            ended.set_exception(error)
        else:
            ended.set_result(result or [])

    def run_work() -> None:
        try:
            loop.call_soon_threadsafe(settle, work(stop), None)
        except Exception as error:
            loop.call_soon_threadsafe(settle, None, error)

    threading.Thread(target=run_work, name="export", daemon=True).start()
    try:
        return await ended
    except asyncio.CancelledError:
        stop.set()
        try:
            async with asyncio.timeout(STOP_S):
                await over.wait()
        except TimeoutError:
            pass
        raise


def _failure_text(topic: TopicExport) -> str:
    """The line for a topic that was not exported whole; an error of the system has the name of its class as reason."""
    if topic.error == "DISK_FULL":
        advice = "free disk space, then run it again: it continues with the failed range"
    elif not topic.error.isupper():
        return f"{topic.topic}: {topic.message} (check the folder of --out, then run it again)"
    else:
        advice = ""
    return f"{topic.error}: {topic.message}" + (f" ({advice})" if advice else "")


def _text(topic: TopicExport, out: str) -> str:
    if topic.error and not topic.rows:
        text = f"{topic.topic}: not exported"
    elif not topic.end_seq:
        text = f"{topic.topic}: nothing new in {out}"
    else:
        text = (
            f"{topic.topic}: {pluralize(topic.rows, 'record')} of seq {topic.first_seq} to {topic.end_seq - 1}"
            f" in {pluralize(topic.files, 'file')}, {format_bytes(topic.bytes)}, in {out}"
        )
    if topic.gaps:
        text += f"; {topic.gaps} lost"
    return text
