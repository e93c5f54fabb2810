"""Why an export by OTLP failed: OpenTelemetry's exporters return no more than that it did, and log the reason.

So their log is heard, before their own filter, which drops what is like something of the same minute, and goes no further:
an outage is one line of ours. Rejected: the exporter's private stub.
Threading: any; each thread gets the words of its own exports.

Who exports by OTLP: the resource that a role's metrics and spans carry, so that a collector puts them together.

Ours are service.namespace, name, version and instance.id. OTEL_RESOURCE_ATTRIBUTES (`key=value`, with commas, values
percent-encoded) adds others and goes before ours, OTEL_SERVICE_NAME before both, as the OpenTelemetry specification has it.
What is no pair is left out, and a WARNING names it.
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
UNSAID: Final = "no reason was given"


class ExportErrorCapture(logging.Filter):
    """What the exporters said last, by thread. One a process, in their logger."""

    def __init__(self) -> None:
        super().__init__()
        self._heard = threading.local()

    def filter(self, record: logging.LogRecord) -> bool:
        self._heard.words = _words(record)
        return False

    def take_reason(self) -> str:
        """Why this thread's last export failed; it is forgotten with that."""
        words: str = getattr(self._heard, "words", "")
        self._heard.words = ""
        return words or UNSAID


def export_error_capture() -> ExportErrorCapture:
    """The process's one; it is put in its place at the first call."""
    logger = logging.getLogger(LOGGER)
    for found in logger.filters:
        if isinstance(found, ExportErrorCapture):
            return found
    made = ExportErrorCapture()
    logger.setLevel(logging.ERROR)
    logger.filters.insert(0, made)
    return made


def _words(record: logging.LogRecord) -> str:
    """`UNAVAILABLE: details`: the last two arguments of what they log."""
    if not isinstance(record.args, tuple) or len(record.args) < 2:
        return record.getMessage()
    code, details = record.args[-2:]
    return f"{getattr(code, 'name', code)}: {details}"


EXPORT_S: Final = 5.0
"""How long one export may take, with its retries. Elsewhere 10 s: the longest that a role's end waits for it."""
SCOPE: Final = "eddyline"
ATTRIBUTES_VARIABLE: Final = "OTEL_RESOURCE_ATTRIBUTES"
NAME_VARIABLE: Final = "OTEL_SERVICE_NAME"

_LOG: Final = logging.getLogger(__name__)


def instance_id(host: Host) -> str:
    """This process, by name."""
    return f"{host.name()}:{host.pid()}"


def otlp_resource(role: str, *, version: str, instance: str, environ: Mapping[str, str] = os.environ) -> Resource:
    """The resource of a role's process."""
    # Imported here: it takes 200 ms, which a role that does not push need not pay.
    from opentelemetry.sdk.resources import Resource

    # The exporters tell each failure at ERROR, each retry at WARNING; here an outage is one line.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    own = {
        "service.namespace": "eddyline",
        "service.name": role,
        "service.version": version,
        "service.instance.id": instance,
    }
    # Not `Resource.create`, where our own would go before the environment's, and which runs detectors.
    return Resource({**own, **environment_attributes(environ)})


def environment_attributes(environ: Mapping[str, str]) -> dict[str, str]:
    """What OpenTelemetry's variables say of whoever exports."""
    found: dict[str, str] = {}
    for pair in environ.get(ATTRIBUTES_VARIABLE, "").split(","):
        key, equals, value = pair.partition("=")
        if key.strip() and equals:
            found[key.strip()] = unquote(value.strip())
        elif pair.strip():
            _LOG.warning("resource attribute left out", extra=fields(variable=ATTRIBUTES_VARIABLE, text=pair.strip()))
    if name := environ.get(NAME_VARIABLE, "").strip():
        found["service.name"] = name
    return found
