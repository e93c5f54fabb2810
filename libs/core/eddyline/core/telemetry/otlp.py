"""Shared parts of both OTLP exporters: the reason of a failed export, and the resource of a role.

OpenTelemetry's exporters return only that an export failed, and log the reason. A filter in their logger captures the
reason before their own filter, which drops repeated messages within a minute, and lets no record through: an outage is
one line of our log. Rejected: the exporter's private stub. Threading: any; each thread gets the reasons of its own
exports.

The resource goes with a role's metrics and spans, so that a collector joins them. It has service.namespace, name, version
and instance.id. OTEL_RESOURCE_ATTRIBUTES (`key=value`, with commas, values percent-encoded) adds attributes and takes
precedence over ours, OTEL_SERVICE_NAME over both, by the OpenTelemetry specification. A malformed pair is left out and
logged as a WARNING.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from eddyline.core.runtime.logging import fields

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.sdk.resources import Resource

    from eddyline.core.runtime.clock import Host


LOGGER: Final = "opentelemetry.exporter.otlp.proto.grpc.exporter"
NO_REASON: Final = "no reason was given"


class ExportErrorCapture(logging.Filter):
    """Captures the exporters' last log message of each thread. One a process, in their logger."""

    def __init__(self) -> None:
        super().__init__()
        self._last = threading.local()

    def filter(self, record: logging.LogRecord) -> bool:
        self._last.reason = _reason_of(record)
        return False

    def take_reason(self) -> str:
        """Return why this thread's last export failed, and forget it."""
        reason: str = getattr(self._last, "reason", "")
        self._last.reason = ""
        return reason or NO_REASON


def export_error_capture() -> ExportErrorCapture:
    """Return the process's filter; the first call installs it."""
    logger = logging.getLogger(LOGGER)
    for existing in logger.filters:
        if isinstance(existing, ExportErrorCapture):
            return existing
    capture = ExportErrorCapture()
    logger.setLevel(logging.ERROR)
    logger.filters.insert(0, capture)
    return capture


def _reason_of(record: logging.LogRecord) -> str:
    """Return `UNAVAILABLE: details`, from the last two arguments of a log record."""
    if not isinstance(record.args, tuple) or len(record.args) < 2:
        return record.getMessage()
    code, details = record.args[-2:]
    return f"{getattr(code, 'name', code)}: {details}"


EXPORT_S: Final = 5.0
"""Bound of one export with its retries, and so of a role's wait for it when it stops. OpenTelemetry: 10 s."""
SCOPE: Final = "eddyline"
ATTRIBUTES_VARIABLE: Final = "OTEL_RESOURCE_ATTRIBUTES"
NAME_VARIABLE: Final = "OTEL_SERVICE_NAME"

_LOG: Final = logging.getLogger(__name__)


def instance_id(host: Host) -> str:
    """Return the name of this process: host and pid."""
    return f"{host.name()}:{host.pid()}"


def otlp_resource(role: str, *, version: str, instance: str, environ: Mapping[str, str] = os.environ) -> Resource:
    """Return the resource of a role's process."""
    # Imported here: it takes 200 ms, which a role without a collector saves.
    from opentelemetry.sdk.resources import Resource

    # The exporters log each failure at ERROR and each retry at WARNING; here an outage is one line.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    own = {
        "service.namespace": "eddyline",
        "service.name": role,
        "service.version": version,
        "service.instance.id": instance,
    }
    # Not `Resource.create`: there ours would take precedence over the environment, and it runs detectors.
    return Resource({**own, **environment_attributes(environ)})


def environment_attributes(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the resource attributes in OpenTelemetry's environment variables."""
    attributes: dict[str, str] = {}
    for pair in environ.get(ATTRIBUTES_VARIABLE, "").split(","):
        key, equals, value = pair.partition("=")
        if key.strip() and equals:
            attributes[key.strip()] = unquote(value.strip())
        elif pair.strip():
            _LOG.warning("resource attribute left out", extra=fields(variable=ATTRIBUTES_VARIABLE, text=pair.strip()))
    if name := environ.get(NAME_VARIABLE, "").strip():
        attributes["service.name"] = name
    return attributes
