"""What every job has in common: its command line, its session, how it speaks and how it ends.

    python -m eddyline.spark.jobs.<job> ...          a session of its own, on this machine's cores unless Spark is told else
    spark-submit ... jobs/<job>.py ...               the session that spark-submit gives

Progress and errors are lines on stderr; the last line on stdout is the result, one JSON object, also where the job failed
behind part of its work. Exit codes: 0 done, 1 failed (what was done stays, and a second run goes on with it), 2 the
command line is wrong, 130 and 143 stopped by Ctrl-C or SIGTERM.
*Invariant:* exit code 0 means that everything that was asked for is done.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol

from eddyline.core.errors import EddylineError
from eddyline.spark.write_options import stores_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import FrameType

    from pyspark.sql import SparkSession

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_SIGNALLED: Final = 128
"""Plus the signal's number, as shells have it."""
TELL_EVERY_S: Final = 2.0
"""Often enough to see that it goes on; an hour's work leaves 1 800 lines in a log."""

SPARK_ERROR_CHARS_MAX: Final = 2_000
"""Of an error of Spark's, which has the Java stack behind what is told first."""

Result = dict[str, object]
"""As JSON takes it."""


class JobError(Exception):
    """A job cannot do what it was asked. `result` is what it did."""

    def __init__(self, message: str, result: Mapping[str, object] | None = None, *, usage: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.result = dict(result or {})
        self.usage = usage


class Job(Protocol):
    """A job's module."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Its own options."""

    def run(self, spark: SparkSession, arguments: argparse.Namespace) -> Result:
        """Do it. Raises: JobError, EddylineError: it failed; what was done stays."""


class _StoppedError(BaseException):
    """A signal ended the job. Past every handler of errors, as KeyboardInterrupt is."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def main(name: str, about: str, job: Job, arguments: Sequence[str] | None = None) -> int:
    """Run a job from its command line; the exit code."""
    parser = argparse.ArgumentParser(
        prog=f"python -m eddyline.spark.jobs.{name}",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--store", required=True, help="host:port of any role of the cluster, or several with commas")
    job.add_arguments(parser)
    try:
        parsed = parser.parse_args(arguments)
    except SystemExit as ended:
        return EXIT_OK if ended.code in (0, None) else EXIT_USAGE
    before = signal.signal(signal.SIGTERM, _stop)
    try:
        parsed.store = stores_of(parsed.store)
        with _session(name) as spark:
            return _run(name, job, spark, parsed)
    except EddylineError as error:
        tell(f"{name}: {error.reason}: {error.message}")
        return EXIT_USAGE
    except KeyboardInterrupt:
        tell(f"{name}: stopped; a second run goes on with what is left")
        return EXIT_SIGNALLED + signal.SIGINT
    except _StoppedError as stopped:
        tell(f"{name}: stopped; a second run goes on with what is left")
        return EXIT_SIGNALLED + stopped.number
    finally:
        signal.signal(signal.SIGTERM, before)


def tell(text: str) -> None:
    """A line for people."""
    sys.stderr.write(" ".join(text.split()) + "\n")
    sys.stderr.flush()


class Teller:
    """Tells every two seconds what `line` gives, while the work goes on; "" = nothing."""

    def __init__(self, line: Callable[[], str]) -> None:
        self._line = line
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def __enter__(self) -> Teller:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        said = ""
        while not self._over.wait(TELL_EVERY_S):
            line = self._line()
            if line and line != said:
                said = line
                tell(line)


@contextmanager
def _session(name: str) -> Iterator[SparkSession]:
    """A Spark session, stopped at the end if it was made here."""
    from pyspark.sql import SparkSession  # half a second, which `--help` does not need

    if (active := SparkSession.getActiveSession()) is not None:
        yield active
        return
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(f"eddyline-{name}").config("spark.log.level", "ERROR")
    made = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    try:
        yield made
    finally:
        made.stop()


def _run(name: str, job: Job, spark: SparkSession, parsed: argparse.Namespace) -> int:
    from pyspark.errors import PySparkException  # as for the session

    try:
        result = job.run(spark, parsed)
    except JobError as error:
        tell(f"{name}: {error.message}")
        if error.result:
            _say(error.result)
        return EXIT_USAGE if error.usage else EXIT_FAILED
    except EddylineError as error:
        tell(f"{name}: {error.reason}: {error.message}")
        return EXIT_FAILED
    except PySparkException as error:
        tell(f"{name}: {str(error)[:SPARK_ERROR_CHARS_MAX]}")
        return EXIT_FAILED
    _say(result)
    return EXIT_OK


def _say(result: Mapping[str, object]) -> None:
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()


def _stop(number: int, _frame: FrameType | None) -> None:
    raise _StoppedError(number)
