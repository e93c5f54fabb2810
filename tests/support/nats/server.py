"""A real nats-server with its own port and folder, which tests may kill and restart at the same address."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

START_SECONDS_MAX: Final = 90.0


class NatsServer:
    """One server. `start` may follow `kill` or `stop`; data stays. `config` = text of a configuration file."""

    def __init__(self, folder: Path, *, config: str = "") -> None:
        self._folder = folder
        self._config = config
        self._process: subprocess.Popen[bytes] | None = None
        self._port = -1

    @property
    def url(self) -> str:
        """Address for clients."""
        return f"nats://{self.address}"

    @property
    def address(self) -> str:
        """Host and port, without a scheme."""
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start, and wait until it listens."""
        ports = self._folder / "ports"
        ports.mkdir(parents=True, exist_ok=True)
        for old in ports.iterdir():
            old.unlink()
        binary = Path(sys.executable).parent / "nats-server"
        command = [str(binary), "-a", "127.0.0.1", "-p", str(self._port), "-js"]
        command += ["-sd", str(self._folder / "data"), "--ports_file_dir", str(ports)]
        if self._config:
            file = self._folder / "nats.conf"
            file.write_text(self._config)
            command += ["-c", str(file)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.perf_counter() + START_SECONDS_MAX
        while not (found := _ports_in(ports)):
            assert self._process.poll() is None, "nats-server ended at once"
            assert time.perf_counter() < deadline, "nats-server did not come up"
            # Another process comes up: there is no event to wait for.
            subprocess.run(["/bin/sleep", "0.01"], check=True)
        self._port = int(found[0].rpartition(":")[2])

    def kill(self) -> None:
        """End it by SIGKILL."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it in order."""
        self._end(signal.SIGTERM)

    def freeze(self) -> None:
        """Suspend it, connections open; it is suspended when this returns."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)

    def thaw(self) -> None:
        """Resume it."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait()
            self._process = None


@contextmanager
def running_nats(folder: Path, *, config: str = "") -> Iterator[NatsServer]:
    """Run a server in a folder. A test may leave it frozen or killed."""
    server = NatsServer(folder, config=config)
    server.start()
    try:
        yield server
    finally:
        server.thaw()
        server.stop()


def _ports_in(folder: Path) -> list[str]:
    for file in folder.glob("*.ports"):
        try:
            urls = json.loads(file.read_text(encoding="ascii")).get("nats", [])
        except ValueError:
            return []  # half written
        return [str(url) for url in urls]
    return []
