"""Open files: raises the process's limit at the start, and computes how many connections fit below it.

An idle connection needs no key and takes a descriptor, like a file of the role. So connections are bounded below the limit,
with a reserve for the files that the role opens.
Linux starts processes with a soft limit of 1 024, which suits `select`, and lets a process raise it to the hard limit.
"""

from __future__ import annotations

import logging
import resource
from typing import Final

from eddyline.core.runtime.logging import fields
from eddyline.core.server.wire import CALLS_MAX

FILES_MAX: Final = 65_536
"""Soft limit to set, if the system allows it: four times `CALLS_MAX`. Not more, since some programs iterate over all
possible descriptors."""
OWN_FILES: Final = 256
"""Files of any role: sockets to other roles, to metrics and traces, libraries, pipes. 40 were measured."""
CONNECTIONS_MIN: Final = 64
"""Connections that callers get at least, however low the limit is."""

_LOG: Final = logging.getLogger(__name__)


def raise_open_files(files_max: int = FILES_MAX) -> int:
    """Raise this process's soft limit to `files_max` or the hard limit, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unbounded = resource.RLIM_INFINITY
    wanted = files_max if hard == unbounded else min(hard, files_max)
    if soft == unbounded or soft >= wanted:
        return files_max if soft == unbounded else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:  # macOS has a lower bound, which only this error reveals
        _LOG.warning("open files: the limit stays", extra=fields(limit=soft, error=str(error)))
        return soft
    return wanted


def connections_within(limit: int, own_files: int = OWN_FILES) -> int:
    """Return how many connections fit into `limit` descriptors next to the role's `own_files`; log a limit that leaves
    few."""
    left = limit - own_files
    connections = max(CONNECTIONS_MIN, min(CALLS_MAX, left))
    if connections < CALLS_MAX:
        _LOG.warning(
            "open files: the limit leaves few connections; raise it (ulimit -n, LimitNOFILE)",
            extra=fields(limit=limit, own_files=own_files, connections=connections, wanted=own_files + CALLS_MAX),
        )
    return connections
