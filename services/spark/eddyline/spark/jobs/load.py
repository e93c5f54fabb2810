"""The job `load`: back-fills a topic from Parquet files or JSON lines, each row once, and goes on where it was stopped.

    python -m eddyline.spark.jobs.load --store 127.0.0.1:7701 --topic orders --create log /data/orders/

Each file is one task and one writer, named after the load's id and the file's name below its input, so a file's rows keep
their order in the topic, and files are loaded side by side. The position stored with the rows records the progress in each
file: a second run, after any failure, continues there and skips finished files. A file is not loaded twice under one id.
Columns and fields: those of `eddyline.spark.writer.rows` and of `eddyline.spark.jobs.files.json_lines`.

Result: topic, files, files_done_before, files_failed, records (appended by this run), skipped (bad rows passed over by
this run), first_seq and last_seq (of this run's appends; null = none). Exit codes: `eddyline.spark.jobs.job`.
"""

from __future__ import annotations

import os
import random
import sys
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlsplit, urlunsplit

import pyarrow as pa
import xxhash
from pyarrow import fs

from eddyline.core.errors import EddylineError
from eddyline.core.model.topic import Kind, check_name
from eddyline.core.runtime.clock import SystemClock
from eddyline.spark.jobs.arguments import add_access, add_patience, asked_of
from eddyline.spark.jobs.files.file_rows import file_system_of, open_rows
from eddyline.spark.jobs.job import JobError, Teller, main, tell
from eddyline.spark.options.access import asked_access, read_access
from eddyline.spark.options.write import WriteOptions
from eddyline.spark.writer.partition import PartitionWriter, Target
from eddyline.spark.writer.store_channel import open_store_channel
from eddyline.spark.writer.writer import find_topic

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark.sql import SparkSession

    from eddyline.spark.jobs.job import Result

FILES_MAX: Final = 100_000
"""Tasks of one stage. More files are loaded folder by folder."""
BAD_TOLD_MAX: Final = 5
"""Bad rows of a file that are printed one by one; the rest is a count."""
ENDINGS: Final = {".parquet": True, ".jsonl": False, ".ndjson": False, ".json": False}
"""Of files that are taken from a folder, and whether they are Parquet."""
ABOUT: Final = (__doc__ or "").replace("`", "")

_DONE: Final = pa.schema(
    [
        ("name", pa.utf8()),
        ("appended", pa.int64()),
        ("skipped", pa.int64()),
        ("first_seq", pa.int64()),
        ("last_seq", pa.int64()),
        ("was_done", pa.bool_()),
        ("failure", pa.utf8()),
        ("bad", pa.list_(pa.utf8())),
    ]
)
_DONE_COLUMNS: Final = (
    "name string, appended long, skipped long, first_seq long, last_seq long, was_done boolean, failure string, "
    "bad array<string>"
)


@dataclass(frozen=True, slots=True)
class InputFile:
    """One file: where it is, and its name, which its writer is named after."""

    path: str
    name: str
    is_parquet: bool


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """The parameters of every task."""

    files: tuple[InputFile, ...]
    target: Target
    load_id: str
    skips_bad: bool


class Load:
    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_access(parser)
        parser.add_argument("inputs", nargs="+", metavar="INPUT", help="files or folders, as paths or URIs")
        parser.add_argument("--topic", required=True, help="topic that is written to")
        parser.add_argument("--create", choices=("log", "kv"), help="make the topic where it is missing")
        parser.add_argument(
            "--input-format", choices=("auto", "parquet", "jsonl"), default="auto", help="auto = by ending"
        )
        parser.add_argument(
            "--on-bad",
            choices=("fail", "skip"),
            default="fail",
            help="bad rows end their file, or are passed over and counted",
        )
        parser.add_argument("--load-id", default="", help="another id loads the same files again")
        add_patience(parser)

    def run(self, spark: SparkSession, arguments: argparse.Namespace) -> Result:
        check_name(arguments.topic, "topic")
        files = find_files(arguments.inputs, arguments.input_format)
        create = Kind[arguments.create.upper()] if arguments.create else None
        access = read_access(asked_access(asked_of(arguments).as_options()), os.environ)
        options = WriteOptions(arguments.store, arguments.topic, create, patience_s=arguments.patience, access=access)
        topic = find_topic(options)
        target = Target(
            options.stores, topic.name, topic.kind, topic.epoch, "", patience_s=options.patience_s, access=access
        )
        plan = LoadPlan(files, target, arguments.load_id, arguments.on_bad == "skip")
        frame = spark.range(0, len(files), 1, len(files)).mapInArrow(_tasks(plan), _DONE_COLUMNS)
        with Teller(_progress(target, topic.head_seq, len(files))):
            done = [row.asDict() for row in frame.collect()]
        return _result(topic.name, done)


def find_files(inputs: Sequence[str], input_format: str) -> tuple[InputFile, ...]:
    """All files below the inputs, by name. Names that begin with a dot or an underscore are passed over in folders.

    Raises:
        JobError: there is none, an input cannot be listed or has no known ending, or two have one name.
    """
    found: dict[str, InputFile] = {}
    for given in inputs:
        for path, name, is_given in _below(given):
            ending = next((ending for ending in ENDINGS if name.endswith(ending)), None)
            if input_format == "auto" and ending is None:
                if is_given:
                    raise JobError(
                        f"{given}: its name ends with none of {' '.join(ENDINGS)}: give --input-format",
                        usage=True,
                    )
                continue
            is_parquet = ENDINGS[ending] if input_format == "auto" and ending else input_format == "parquet"
            if name in found:
                raise JobError(
                    f"{path} and {found[name].path} are both {name} below their inputs: load them under two ids",
                    usage=True,
                )
            found[name] = InputFile(path, name, is_parquet)
    if not found or len(found) > FILES_MAX:
        raise JobError(f"{len(found)} files in {', '.join(inputs)}; one load takes 1 to {FILES_MAX}", usage=True)
    return tuple(found[name] for name in sorted(found))


def load_file(file: InputFile, plan: LoadPlan) -> dict[str, object]:
    """Load one file; what came of it, a failure too."""
    bad: list[str] = []

    def on_bad(place: int, error: EddylineError) -> None:
        if not plan.skips_bad:
            raise error
        if len(bad) < BAD_TOLD_MAX:
            bad.append(_shown(error))

    done: dict[str, object] = dict.fromkeys(("appended", "skipped", "first_seq", "last_seq"), 0)
    done |= {"name": file.name, "was_done": False, "failure": None, "bad": bad}
    try:
        rows = open_rows(
            file.path,
            name=file.name,
            is_parquet=file.is_parquet,
            kind=plan.target.kind,
            topic=plan.target.topic,
            on_bad=on_bad,
        )
    except (EddylineError, OSError, pa.ArrowException) as error:
        return done | {"failure": _shown(error)}
    # Jitter alone is random.
    writer = PartitionWriter(rows, _target_of(file, plan), clock=SystemClock(), random_source=random.Random())
    with closing(rows):
        try:
            writer.write()
        except (EddylineError, OSError, pa.ArrowException) as error:
            done["failure"] = _shown(error)
    written = writer.written
    done |= {"appended": written.appended, "first_seq": written.first_seq, "last_seq": written.last_seq}
    done |= {"skipped": rows.skipped, "was_done": rows.was_done}
    return done


def _shown(error: Exception) -> str:
    if isinstance(error, EddylineError):
        return f"{error.reason}: {error.message}"
    return f"{type(error).__name__}: {error}"


def _target_of(file: InputFile, plan: LoadPlan) -> Target:
    name = xxhash.xxh3_128_hexdigest(f"{plan.load_id}\0{file.name}".encode())
    return replace(plan.target, writer=f"load-{name}")


def _tasks(plan: LoadPlan) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            done = [load_file(plan.files[index], plan) for index in batch.column(0).to_pylist()]
            yield pa.RecordBatch.from_pylist(done, schema=_DONE)

    return run


def _below(given: str) -> Iterator[tuple[str, str, bool]]:
    """Path and name of each file, and whether it is what was given."""
    where = given if "://" in given else str(_absolute(given))
    try:
        system, inner = file_system_of(where)
        info = system.get_file_info(inner)
        is_folder = info.type == fs.FileType.Directory
        below = system.get_file_info(fs.FileSelector(inner, recursive=True)) if is_folder else ()
    except (OSError, pa.ArrowException) as error:
        why = str(error).partition("\n")[0]  # hdfs tells all places where it looked for its library, a line each
        raise JobError(f"{given}: cannot be read: {why}", usage=isinstance(error, pa.ArrowException)) from error
    if info.type == fs.FileType.NotFound:
        raise JobError(f"{given}: no such file or folder", usage=True)
    if info.type == fs.FileType.File:
        yield where, info.base_name, True
    for file in below:
        name = file.path.removeprefix(inner).lstrip("/")
        if file.type == fs.FileType.File and not any(part[:1] in "._" for part in name.split("/")):
            yield _joined(where, name), name, False


def _joined(folder: str, name: str) -> str:
    """The path or URI of a file in a folder. In a URI its name is escaped and precedes a query (`?`)."""
    if "://" not in folder:
        return f"{folder.rstrip('/')}/{name}"
    parts = urlsplit(folder)
    return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{quote(name)}"))


def _absolute(path: str) -> str:
    from os.path import abspath  # a local path alone is made whole

    return abspath(path)


def _progress(target: Target, head_seq: int, files: int) -> Callable[[], str]:
    def line() -> str:
        try:
            with open_store_channel(target.stores, target.topic, target.access) as link:
                head = link.get_topic().head_seq
        except EddylineError as error:
            return f"load: {error.reason}: {error.message}"
        return f"load: topic {target.topic}: {head - head_seq} records came since the start, of {files} files"

    return line


def _result(topic: str, done: Sequence[dict[str, object]]) -> Result:
    failed = [one for one in done if one["failure"]]
    for one in done:
        for text in one["bad"] if isinstance(one["bad"], list) else ():
            tell(f"load: {one['name']}: passed over: {text}")

    def numbers(field: str) -> list[int]:
        return [int(str(one[field])) for one in done if one[field]]

    result: Result = {
        "topic": topic,
        "files": len(done),
        "files_done_before": sum(bool(one["was_done"]) for one in done),
        "files_failed": len(failed),
        "records": sum(numbers("appended")),
        "skipped": sum(numbers("skipped")),
        "first_seq": min(numbers("first_seq"), default=None),
        "last_seq": max(numbers("last_seq"), default=None),
    }
    if failed:
        for one in failed:
            tell(f"load: {one['name']}: {one['failure']}")
        raise JobError(
            f"{len(failed)} of {len(done)} files are not loaded completely; run it again to continue", result
        )
    return result


if __name__ == "__main__":
    # By its name, so that tasks find it: what is in `__main__` is in no other process.
    from eddyline.spark.jobs import load

    sys.exit(main("load", load.ABOUT, load.Load()))
