"""Process of a role: what `__main__` of store, ingest and delivery have in common.

Life: read the settings; set up the log, which goes to stderr; run the role's `serve` on uvloop until SIGTERM or SIGINT;
exit 0. A role that cannot start writes why in one line on stderr and exits 1. Standard output gets one line, once the
role serves. The role itself makes and orders what it owns (server, links, jobs), as an `AsyncExitStack` in `serve`.
Threading: event loop.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from importlib.metadata import version
from random import Random
from typing import TYPE_CHECKING, Generic, TypeVar

import uvloop

from eddyline.core.auth.role import RoleAccess
from eddyline.core.runtime.clock import SystemClock, SystemHost
from eddyline.core.runtime.logging import fields, set_up_logging
from eddyline.core.runtime.settings import COMMON_PREFIX, SettingsError, load_common, load_settings, non_default
from eddyline.core.telemetry.metrics_export import MetricsExport
from eddyline.core.telemetry.probes import Probes
from eddyline.core.telemetry.trace_export import TraceExport
from eddyline.core.telemetry.tracing import Tracer

if TYPE_CHECKING:
    import logging
    from collections.abc import Awaitable, Callable, Mapping
    from typing import Protocol

    from eddyline.core.runtime.clock import Clock
    from eddyline.core.runtime.settings import CommonSettings, SettingsClass
    from eddyline.core.server.health import HealthBoard
    from eddyline.core.telemetry.probes import ReplayProgress

    class RoleSettings(SettingsClass, Protocol):
        @property
        def metrics_listen(self) -> str:
            """Address of metrics and probes; "" = none."""


Settings = TypeVar("Settings", bound="RoleSettings")


class RoleProcess(Generic[Settings]):
    """Settings, signals, access and telemetry of a running role. Needs a running event loop."""

    def __init__(self, role: str, settings: Settings, common: CommonSettings, clock: Clock) -> None:
        """Install the signal handlers, and read key and certificate files.

        Raises:
            SettingsError: a file cannot be used.
        """
        self.stopping = asyncio.Event()
        """Set by SIGTERM and SIGINT."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self.stopping.set)
        self.role = role
        self.version = version(f"eddyline-{role}")
        self.settings = settings
        self.common = common
        self.clock = clock
        self.host = SystemHost()
        self.access = RoleAccess(common)
        self.tracer = Tracer(common.trace_ratio, clock=clock, rng=Random())

    def metrics_export(
        self, health: HealthBoard, *, recovered: Callable[[], ReplayProgress] | None = None
    ) -> MetricsExport:
        """Return the export of metrics and probes. `recovered` = the progress of a role that recovers something."""
        return MetricsExport(
            self.role,
            self.settings.metrics_listen,
            version=self.version,
            common=self.common,
            clock=self.clock,
            host=self.host,
            probes=Probes(health, recovered=recovered),
            tls=self.access.http_context,
        )

    def trace_export(self) -> TraceExport:
        """Return the export of the spans of `tracer`."""
        return TraceExport(
            self.role, self.tracer, version=self.version, common=self.common, clock=self.clock, host=self.host
        )

    def print_ready(self, text: str) -> None:
        """Write the one line of standard output: `<role> ready at <text>`."""
        sys.stdout.write(f"{self.role} ready at {text}\n")
        sys.stdout.flush()


def run_process(
    role: str,
    serve: Callable[[RoleProcess[Settings]], Awaitable[None]],
    settings_class: type[Settings],
    *,
    prefix: str,
    environ: Mapping[str, str],
    log: logging.Logger,
    clock: Clock | None = None,
    check: Callable[[Settings, CommonSettings], None] | None = None,
    startup_errors: tuple[type[Exception], ...] = (),
    startup_error_text: Callable[[Exception, Settings], str] = lambda error, _settings: str(error),
) -> int:
    """Run a role until SIGTERM or SIGINT, and return its exit code.

    `clock` None = the system's. `check` raises SettingsError for settings that do not fit together. `startup_errors` are
    what `serve` raises where the role cannot start; `startup_error_text` is what is written then.
    """

    async def run(settings: Settings, common: CommonSettings) -> None:
        await serve(RoleProcess(role, settings, common, clock if clock is not None else SystemClock()))

    try:
        common = load_common(environ)
        settings = load_settings(settings_class, prefix=prefix, environ=environ)
        if check is not None:
            check(settings, common)
        set_up_logging(role, level=common.log_level, log_format=common.log_format)
        log.info(
            "starting",
            extra=fields(**non_default(common, prefix=COMMON_PREFIX), **non_default(settings, prefix=prefix)),
        )
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(run(settings, common))
        except startup_errors as error:
            return _refuse(role, startup_error_text(error, settings))
    except SettingsError as error:
        return _refuse(role, str(error))
    return 0


def _refuse(role: str, reason: str) -> int:
    sys.stderr.write(f"eddyline {role}: {reason}\n")
    return 1
