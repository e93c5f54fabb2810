"""Queries a probe of this container's role, for an image's health check.

    python -m eddyline.core.ask_probe live|started|ready

The address is the role's own `EDDYLINE_<ROLE>_METRICS_LISTEN`, over TLS if the role has an `EDDYLINE_COMMON_TLS_CERT`.
Exit code 0 = yes, 1 = no or no answer, 2 = nothing to query; the answer goes to standard output. Only the standard
library is imported, so that the check costs little.
The certificate is not verified: it has the names by which others call the role, and not the address of loopback; no
secret is sent; and a process that could answer in the role's place is in the container already.
"""

from __future__ import annotations

import os
import re
import ssl
import sys
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TIMEOUT_S: Final = 3.0
"""An answer takes a millisecond; an event loop that is busy for this long is not healthy."""
PROBES: Final = ("live", "started", "ready")
_SETTING: Final = re.compile(r"EDDYLINE_[A-Z]+_METRICS_LISTEN")
_CERTIFICATE: Final = "EDDYLINE_COMMON_TLS_CERT"
_EVERYWHERE: Final = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}


def main(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Query the probe; return the exit code."""
    if len(arguments) != 1 or arguments[0] not in PROBES:
        return _report(2, f"the probe must be one of {', '.join(PROBES)}")
    listen = [value for name, value in environ.items() if _SETTING.fullmatch(name) and value]
    if len(listen) != 1:
        return _report(2, f"one EDDYLINE_<ROLE>_METRICS_LISTEN must be set, not {len(listen)}")
    host, _, port = listen[0].rpartition(":")
    host = host.strip("[]")
    connection = _connection(_EVERYWHERE.get(host, host), int(port), encrypted=bool(environ.get(_CERTIFICATE)))
    try:
        connection.request("GET", f"/{arguments[0]}")
        answer = connection.getresponse()
        text = answer.read().decode("latin-1").strip()
    except (OSError, HTTPException) as error:
        return _report(1, f"no answer at {listen[0]}: {error}")
    finally:
        connection.close()
    return _report(0 if answer.status == 200 else 1, text)


def _connection(host: str, port: int, *, encrypted: bool) -> HTTPConnection:
    if not encrypted:
        return HTTPConnection(host, port, timeout=TIMEOUT_S)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return HTTPSConnection(host, port, timeout=TIMEOUT_S, context=context)


def _report(code: int, text: str) -> int:
    sys.stdout.write(text + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
