"""Removing consumers that nobody reads: what a crash, a lost answer or a lost lease left at NATS.

The server removes a consumer by itself after 30 s without a pull; until then it would count against the stream's limits and
hold memory. A consumer of a newer fence is another replica's, and left alone.
Failure: what cannot be deleted now is left to the server; nothing depends on it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from eddyline.core.errors import EddylineError
from eddyline.core.telemetry.names import fields
from eddyline.ingest.nats.consumer_names import fence_in

if TYPE_CHECKING:
    from eddyline.ingest.nats.jetstream import JetStream

log = logging.getLogger(__name__)


async def sweep(jetstream: JetStream, stream_name: str, prefix: str, *, fence: int, keep: str = "") -> int:
    """Delete the consumers of a source (by `prefix`) that are not `keep` and not of a newer fence; their number."""
    deleted = 0
    try:
        for name in await jetstream.consumer_names(stream_name):
            found = fence_in(prefix, name)
            if found is not None and found <= fence and name != keep:
                deleted += await jetstream.delete_consumer(stream_name, name)
    except EddylineError as error:
        log.info("consumers not swept", extra=fields(stream=stream_name, error=error.message))
    if deleted:
        log.info("consumers swept", extra=fields(stream=stream_name, deleted=deleted))
    return deleted
