"""Parts shared by all jobs: command line, session, output and exit code.

    python -m eddyline.spark.jobs.<job> ...          a session of its own, on this machine's cores unless Spark's settings
    say otherwise
    spark-submit ... jobs/<job>.py ...               the session that spark-submit gives

Progress and errors are lines on stderr; the last line on stdout is the result, one JSON object; of a job that did nothing,
`failed`, `error` (the reason) and `message`. None comes where the command line is wrong or the job was stopped. Exit codes:
0 done, 1 failed (what was done stays, and a second run goes on with it), 2 the command line is wrong, 130 and 143 stopped by
Ctrl-C or SIGTERM.
I1: exit code 0 means that the job did everything it was started for.
I2: a stop never enters a call to Spark's JVM (`call_with_timeout.py`), so it is not lost on its way, and leaves no
traceback.
Threading: the job runs in a thread of its own; the main thread waits for it, and for signals.
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
from eddyline.spark.jobs.spark_calls import ASIDE_S, call_with_timeout
from eddyline.spark.options.write import stores_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import FrameType

    from pyspark.sql import SparkSession

ADDRESS_VARIABLE: Final = "EDDYLINE_ADDRESS"
"""As the command `eddyline` has it; the chart sets it."""
EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_SIGNALLED: Final = 128
"""Plus the signal's number, as shells have it."""
TELL_EVERY_S: Final = 2.0
"""Often enough to see that it goes on; an hour's work leaves 1 800 lines in a log."""

JOB_THREAD: Final = "eddyline-job"
SPARK_ERROR_CHARS_MAX: Final = 2_000
"""Lines printed of an error of Spark, whose Java stack follows its message."""

Result = dict[str, object]
"""As JSON takes it."""


class JobError(Exception):
    """A job failed; its message goes to stderr. `result` is what it did; `reason` that of an error that had it do
    nothing."""

    def __init__(
        self,
        message: str,
        result: Mapping[str, object] | None = None,
        *,
        usage: bool = False,
        reason: str = "INVALID_ARGUMENT",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason
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


def main(name: str, about: str, job: Job, arguments: Sequence[str] | None = None) -> int:
    """Run a job from its command line; the exit code."""
    parser = argparse.ArgumentParser(
        prog=f"python -m eddyline.spark.jobs.{name}",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    known = os.environ.get(ADDRESS_VARIABLE, "")
    parser.add_argument(
        "--store",
        default=known,
        required=not known,
        help=f"host:port of any role of the cluster, or several with commas (${ADDRESS_VARIABLE})",
    )
    job.add_arguments(parser)
    try:
        parsed = parser.parse_args(arguments)
    except SystemExit as ended:
        return EXIT_OK if ended.code in (0, None) else EXIT_USAGE
    with _signals() as stopped:
        try:
            parsed.store = stores_of(parsed.store)
            with _session(name) as spark:
                return _run(name, job, spark, parsed)
        except EddylineError as error:
            tell(f"{name}: {error.reason}: {error.message}")
            return EXIT_USAGE
        except BaseException as error:
            # What a stop broke off may raise its own error over it (I2).
            if not stopped and not isinstance(error, KeyboardInterrupt):
                raise
            tell(f"{name}: stopped; run it again to continue")
            code = EXIT_SIGNALLED + (stopped[0] if stopped else signal.SIGINT)
            if any(thread.name == JOB_THREAD for thread in threading.enumerate()):
                # It is in native code still, in which the interpreter's end would abort the process with another code.
                sys.stdout.flush()
                os._exit(code)
            return code


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
        self._thread.join(ASIDE_S)

    def _run(self) -> None:
        said = ""
        while not self._over.wait(TELL_EVERY_S):
            try:
                line = self._line()
            except Exception:
                # Spark is gone, or going: the work says so itself.
                return
            if line and line != said:
                said = line
                tell(line)


@contextmanager
def _session(name: str) -> Iterator[SparkSession]:
    """A Spark session, stopped at the end if it was made here."""
    from pyspark import SparkContext  # half a second, which `--help` does not need
    from pyspark.sql import SparkSession

    if (active := SparkSession.getActiveSession()) is not None:
        yield active
        return
    was_running = SparkContext._active_spark_context is not None
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(f"eddyline-{name}").config("spark.log.level", "ERROR")
    # Ctrl-C goes to all processes of a terminal's job. Spark's workers in Python would each show a traceback: they take
    # over that it is blocked. PySpark's own handler calls the JVM in the middle of any other call.
    handler = signal.getsignal(signal.SIGINT)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        made = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    finally:
        signal.signal(signal.SIGINT, handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        yield made
    finally:
        if not was_running:
            call_with_timeout(made.stop)


def _run(name: str, job: Job, spark: SparkSession, parsed: argparse.Namespace) -> int:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        result = _in_thread(spark, lambda: job.run(spark, parsed))
    except JobError as error:
        tell(f"{name}: {error.message}")
        _say(error.result or _failure(error.reason, error.message))
        return EXIT_USAGE if error.usage else EXIT_FAILED
    except EddylineError as error:
        tell(f"{name}: {error.reason}: {error.message}")
        _say(_failure(error.reason, error.message))
        return EXIT_FAILED
    except (PySparkException, Py4JError) as error:
        message = str(error)[:SPARK_ERROR_CHARS_MAX]
        tell(f"{name}: {message}")
        _say(_failure(type(error).__name__, message))
        return EXIT_FAILED
    _say(result)
    return EXIT_OK


def _in_thread(spark: SparkSession, work: Callable[[], Result]) -> Result:
    """Do it in a thread, and wait for it here. A stop ends the session, and so the work, which gets time to clean up."""
    ended: list[Result | BaseException] = []

    def run() -> None:
        try:
            ended.append(work())
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=run, name=JOB_THREAD, daemon=True)
    thread.start()
    try:
        thread.join()
    except BaseException:
        call_with_timeout(spark.stop)
        thread.join(ASIDE_S)
        raise
    (end,) = ended
    if isinstance(end, BaseException):
        raise end
    return end


def _failure(reason: str, message: str) -> Result:
    """The result of a job that did nothing. `failed` is a number, as it is where some of the topics failed."""
    return {"failed": 1, "error": reason, "message": message}


@contextmanager
def _signals() -> Iterator[list[int]]:
    """SIGINT and SIGTERM stop the job; the numbers of those that came. The first one counts: stopping takes seconds."""
    came: list[int] = []

    def stop(number: int, _frame: FrameType | None) -> None:
        came.append(number)
        if len(came) == 1:
            raise _StoppedError

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _say(result: Mapping[str, object]) -> None:
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()
