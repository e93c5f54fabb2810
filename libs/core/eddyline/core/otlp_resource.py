"""Who exports by OTLP: the resource that a role's metrics and spans carry, so that a collector puts them together."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource

    from eddyline.core.clock import Host

EXPORT_S: Final = 5.0
"""How long one export may take, with its retries. Elsewhere 10 s: the longest that a role's end waits for it."""
SCOPE: Final = "eddyline"


def instance_id(host: Host) -> str:
    """This process, by name."""
    return f"{host.name()}:{host.pid()}"


def otlp_resource(role: str, *, version: str, instance: str) -> Resource:
    """The resource of a role's process."""
    # Imported here: it takes 200 ms, which a role that does not push need not pay.
    from opentelemetry.sdk.resources import Resource

    # The exporters tell each failure at ERROR, each retry at WARNING; here an outage is one line.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    # Not `Resource.create`, which runs detectors and reads the environment.
    return Resource(
        {
            "service.namespace": "eddyline",
            "service.name": role,
            "service.version": version,
            "service.instance.id": instance,
        }
    )
