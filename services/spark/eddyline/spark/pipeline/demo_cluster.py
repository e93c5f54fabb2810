"""The demo as a process: a cluster with real data whose writer goes on, and what it says of itself.

I1: the process is gone when the block ends, with all that it started: Ctrl-C is how a demo ends.
Failure: `DemoFailed` where it ends by itself, or is not where it should be in time.
Threading: one thread reads what it says; the caller waits for it.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Moment = dict[str, object]

STOP_S: Final = 30.0


class DemoFailed(Exception):
    """The demo did not come to where it is needed."""


class DemoCluster:
    """A demo that runs in `data`."""

    def __init__(self, process: subprocess.Popen[str], data: Path) -> None:
        self._process = process
        self._data = data
        self._changed = threading.Condition()
        self._moment: Moment = {}
        self._is_over = False
        threading.Thread(target=self._listen, name="demo", daemon=True).start()

    def wait_for(self, holds: Callable[[Moment], bool], what: str, timeout_s: float) -> Moment:
        """Wait until what it tells once a second holds.

        Raises:
            DemoFailed: it ended, or the time is over.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or (self._moment and holds(self._moment)), timeout_s)
            if self._is_over or not self._moment or not holds(self._moment):
                ended = "it ended" if self._is_over else f"{timeout_s:.0f} s have passed"
                raise DemoFailed(f"the demo has not {what}: {ended} ({json.dumps(self._moment)})")
            return self._moment

    @property
    def address(self) -> str:
        """Addresses of its roles."""
        parts = json.loads((self._data / "cluster.json").read_text(encoding="utf-8"))
        return ",".join(str(parts[role]["address"]) for role in ("store", "delivery", "ingest"))

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line) if line.startswith("{") else {}
            if told.get("event") == "moment":
                with self._changed:
                    self._moment = told
                    self._changed.notify_all()
        with self._changed:
            self._is_over = True
            self._changed.notify_all()


@contextmanager
def demo_cluster(data: Path) -> Iterator[DemoCluster]:
    """Run the demo in a folder, on ports that are free."""
    data.mkdir(parents=True, exist_ok=True)
    with (data / "demo.log").open("w", encoding="utf-8") as log:
        command = [sys.executable, "-m", "eddyline.cli", "demo", "--free-ports", "-o", "json", "--data", str(data)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True)
        try:
            yield DemoCluster(process, data)
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def is_level(moment: Moment) -> bool:
    """True = both buckets are copied, to their last revision."""
    sources = moment.get("sources")
    return (
        isinstance(sources, list)
        and len(sources) == 2
        and all(source["keys"] and not source["lag"] and source["last_revision"] for source in sources)
    )
