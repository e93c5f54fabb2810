"""How many range scans clients may have open, whichever call they come by.

Threading: event loop.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from eddyline.core.errors import TooManyScans
from eddyline.core.transport.cluster_check import CLUSTER_ID_KEY
from eddyline.store.fold.fold import RETRY_AFTER_MS, VIEWS_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eddyline.core.server.deadline import CallContext

CLIENT_SCANS_MAX: Final = VIEWS_MAX - 24
"""Scans of callers that are no roles: clients that stand still, for 300 s each, leave 24 of the 64 to the snapshots of
delivery and the resyncs of ingest, on which many others wait."""


class ScanRoom:
    """Counts the open scans of clients."""

    def __init__(self) -> None:
        self._client_scans = 0

    @contextmanager
    def of(self, context: CallContext) -> Iterator[None]:
        """Room for a call's scan; a role says its cluster with each call, and is not counted.

        Raises:
            TooManyScans.
        """
        of_client = all(key != CLUSTER_ID_KEY for key, _ in context.invocation_metadata() or ())
        if of_client and self._client_scans >= CLIENT_SCANS_MAX:
            raise TooManyScans(
                f"{CLIENT_SCANS_MAX} scans of clients are open", scansMax=CLIENT_SCANS_MAX, retryAfterMs=RETRY_AFTER_MS
            )
        self._client_scans += of_client
        try:
            yield
        finally:
            self._client_scans -= of_client
