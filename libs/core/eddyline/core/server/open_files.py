"""Open files: the process's limit, raised at the start, and how many of them callers may have.

An idle connection needs no key and takes a descriptor, as a file of the role's own does. So connections are bounded below
the limit, with a reserve for what the role opens itself.
Linux starts processes with a soft limit of 1 024, which fits `select`, and lets each raise it to the hard one.
"""

from __future__ import annotations

import logging
import resource
from typing import Final

from eddyline.core.runtime.logging import fields
from eddyline.core.server.server import CALLS_MAX

FILES_MAX: Final = 65_536
"""As many are asked for, where the system allows it: four times the connections that are of use (`CALLS_MAX`). No more,
since some programs walk through all that there may be."""
OWN_FILES: Final = 256
"""What any role has open itself: sockets to other roles, of metrics and traces, libraries, pipes. 40 were seen."""
CONNECTIONS_MIN: Final = 64
"""Callers get at least so many, however low the limit is."""

_LOG: Final = logging.getLogger(__name__)


def raise_open_files(files_max: int = FILES_MAX) -> int:
    """Raise this process's soft limit of open files as far as the hard one allows, to `files_max`; the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unbounded = resource.RLIM_INFINITY
    wanted = files_max if hard == unbounded else min(hard, files_max)
    if soft == unbounded or soft >= wanted:
        return files_max if soft == unbounded else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:  # macOS has a lower one that it tells only so
        _LOG.warning("open files: the limit stays", extra=fields(limit=soft, error=str(error)))
        return soft
    return wanted


def connections_within(limit: int, own_files: int = OWN_FILES) -> int:
    """How many connections callers may have of `limit` descriptors, where the role itself needs `own_files`. A limit that
    leaves few is said in the log."""
    left = limit - own_files
    connections = max(CONNECTIONS_MIN, min(CALLS_MAX, left))
    if connections < CALLS_MAX:
        _LOG.warning(
            "open files: the limit leaves few connections; raise it (ulimit -n, LimitNOFILE)",
            extra=fields(limit=limit, own_files=own_files, connections=connections, wanted=own_files + CALLS_MAX),
        )
    return connections
