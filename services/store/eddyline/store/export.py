"""`python -m eddyline.store export DIR TOPIC… --out FOLDER`: topics of a stopped store to Parquet files with a manifest.

It starts a store on DIR at a free loopback port, which recovers DIR as any start does, exports from it as `eddyline export`
does, and stops it. Results go to standard output, with `-o json` one object a topic; progress and errors to stderr. Exit
codes: 0 everything exported, 1 a part was not, 2 nothing could be started, 130 and 143 interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from eddyline.core.errors import EddylineError
from eddyline.core.runtime.fs import RealFs
from eddyline.store.config import PREFIX
from eddyline.store.program_output import UnsaidError, say
from eddyline.store.storage.identity import read_identity
from eddyline.store.storage.layout import Layout

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

EXIT_DONE: Final = 0
EXIT_FAILED: Final = 1
EXIT_NOT_BEGUN: Final = 2
EXIT_SIGNALLED: Final = 128
PATIENCE_S: Final = 60.0
STOP_S: Final = 60.0
"""A stop writes a checkpoint; its own grace and a checkpoint of a full log take less than this."""
_READY: Final = "store ready at "
_NOWHERE: Final = "127.0.0.1:0"


class NotBegun(Exception):
    """The directory cannot be exported from."""


def export(words: Sequence[str]) -> int:
    """Export; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m eddyline.store export",
        description="Write topics of a stopped store as Parquet files with a manifest.",
    )
    parser.add_argument("directory", metavar="DIR", type=Path, help="data directory of the store")
    parser.add_argument("topic", metavar="TOPIC", nargs="+", help="names, or one prefix with * at its end")
    parser.add_argument("--out", required=True, metavar="FOLDER", help="a directory, or a URI that pyarrow.fs opens")
    parser.add_argument("--on-gap", choices=("fail", "warn", "rows"), default="fail", help="as for `eddyline export`")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    arguments = parser.parse_args(words)
    signal.signal(signal.SIGTERM, _stop)
    try:
        return _exported(arguments)
    except KeyboardInterrupt:
        return EXIT_SIGNALLED + signal.SIGINT
    except _Terminated:
        return EXIT_SIGNALLED + signal.SIGTERM
    except UnsaidError as error:  # by then each topic is exported, or was reported as failed
        return _refuse(str(error), EXIT_FAILED) if str(error) else EXIT_FAILED
    except (NotBegun, OSError) as error:
        return _refuse(str(error), EXIT_NOT_BEGUN)
    except EddylineError as error:
        return _refuse(f"{error.reason}: {error.message}", EXIT_FAILED)


def _exported(arguments: argparse.Namespace) -> int:
    try:
        # a distribution of its own, which a serving store does not need
        from eddyline.export.in_process import export_topics
        from eddyline.export.out_dir import OutDir, absolute
        from eddyline.export.run import ExportSizes, WorkRefused
        from eddyline.export.split.calls import Cluster
    except ModuleNotFoundError as error:
        raise NotBegun(f"{error.name} is not installed: pip install eddyline-export") from None
    with _served(arguments.directory) as stores, Cluster(stores, patience_s=PATIENCE_S, stores=stores) as cluster:
        try:
            done = export_topics(
                cluster,
                arguments.topic,
                OutDir(absolute(arguments.out)),
                on_gap=arguments.on_gap,
                sizes=ExportSizes(),
                tell=_tell,
                stop=threading.Event(),
            )
        except WorkRefused as error:
            return _refuse(f"{error.reason}: {error}", EXIT_NOT_BEGUN)
    failed = [topic for topic in done if topic.error]
    for topic in failed:
        _refuse(f"{topic.error}: {topic.message}", EXIT_FAILED)
    for topic in done:
        text = f"{topic.topic}: {topic.rows} records in {topic.files} files, {topic.bytes} bytes, {topic.gaps} lost"
        say(json.dumps(asdict(topic)) if arguments.output == "json" else text)
    return EXIT_FAILED if failed else EXIT_DONE


@contextmanager
def _served(directory: Path) -> Iterator[tuple[str, ...]]:
    """Run a store on the directory, as its own shard; yields the addresses of all shards, of which only its own answers."""
    layout = Layout(directory)
    identity = read_identity(RealFs(), layout)
    if identity is None:
        raise NotBegun(f"{directory} is not a data directory of a store: it has no {layout.identity.name}")
    addresses = [f"127.0.0.1:{number + 1}" for number in range(identity.shard_count)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EDDYLINE_COMMON_")}
    environment |= {
        "EDDYLINE_COMMON_CLUSTER_ID": identity.cluster_id,
        "EDDYLINE_COMMON_STORE_ADDRESSES": ",".join(addresses),
        f"{PREFIX}SHARD_INDEX": str(identity.shard_index),
        f"{PREFIX}DATA_DIR": str(directory),
        f"{PREFIX}LISTEN": _NOWHERE,
        f"{PREFIX}METRICS_LISTEN": "",
    }
    with subprocess.Popen(
        [sys.executable, "-m", "eddyline.store"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Ctrl-C is for this process, which then stops the store
        start_new_session=True,
    ) as store:
        log = _Log(store)
        try:
            assert store.stdout is not None
            line = store.stdout.readline()
            if not line.startswith(_READY):
                _end(store)
                raise NotBegun(log.last_line())
            addresses[identity.shard_index] = line.removeprefix(_READY).partition(",")[0]
            yield tuple(addresses)
        finally:
            store.terminate()
            _end(store)


def _end(store: subprocess.Popen[str]) -> None:
    """Wait until the store has ended; kill it if that takes too long."""
    try:
        store.wait(STOP_S)
    except subprocess.TimeoutExpired:
        store.kill()


class _Log:
    """Reads the store's log, so that its pipe never fills; keeps the last line."""

    def __init__(self, store: subprocess.Popen[str]) -> None:
        self._store = store
        self._last = ""
        self._thread = threading.Thread(target=self._read, name="store log", daemon=True)
        self._thread.start()

    def last_line(self) -> str:
        """The last line of an ended store."""
        self._thread.join(STOP_S)
        return self._last.removeprefix("eddyline store: ")

    def _read(self) -> None:
        assert self._store.stderr is not None
        for line in self._store.stderr:
            self._last = line.strip() or self._last


class _Terminated(BaseException):
    """SIGTERM arrived."""


def _stop(_number: int, _frame: object) -> None:
    raise _Terminated


def _tell(line: str) -> None:
    sys.stderr.write(f"eddyline export: {line}\n")


def _refuse(why: str, code: int) -> int:
    sys.stderr.write(f"eddyline export: {' '.join(why.split())}\n")
    return code
