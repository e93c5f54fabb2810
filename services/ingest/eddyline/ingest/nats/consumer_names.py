"""Names of our consumers, and deletion of stale ones. A name contains cluster, source, fence and attempt, so each is unique.

    eddyline-<cluster>-<source>-<16 hex digits of both, and of the topic>-f<fence>-a<attempt>

Cluster and source are readable as far as JetStream's rule for names and its 255 bytes allow; the hash distinguishes them.

A crash, a lost answer or a lost lease leaves consumers at NATS. The server removes a consumer after 30 s without a pull;
until then it counts against the stream's limits and uses memory. A consumer with a newer fence belongs to another replica
and stays.
Failure: a consumer that cannot be deleted now is left to the server; nothing depends on it.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Final

from xxhash import xxh3_64_hexdigest

from eddyline.core.errors import EddylineError
from eddyline.core.runtime.logging import fields

if TYPE_CHECKING:
    from eddyline.core.model.topic import TopicInfo
    from eddyline.ingest.nats.jetstream import JetStream


_ODD: Final = re.compile(r"[^A-Za-z0-9_]")
_READABLE_CHARS: Final = 48
_TAIL: Final = re.compile(r"f(\d{1,20})-a(\d{1,20})")


def name_prefix(cluster_id: str, source: str, topic: TopicInfo) -> str:
    """Prefix of every consumer of this source of this cluster, and of no other. The creation time of its topic distinguishes
    clusters of the same id."""
    readable = "-".join(_ODD.sub("_", part)[:_READABLE_CHARS] for part in (cluster_id, source))
    identity = f"{cluster_id}\0{source}\0{topic.epoch}\0{topic.create_ts_ms}"
    return f"eddyline-{readable}-{xxh3_64_hexdigest(identity.encode())}-"


def consumer_name(prefix: str, fence: int, attempt: int) -> str:
    """Name for one attempt under one lease."""
    return f"{prefix}f{fence}-a{attempt}"


def fence_in(prefix: str, name: str) -> int | None:
    """Fence in a name with this prefix; None = another source's name."""
    match = _TAIL.fullmatch(name.removeprefix(prefix)) if name.startswith(prefix) else None
    return int(match[1]) if match is not None else None


log = logging.getLogger(__name__)


async def delete_stale_consumers(
    jetstream: JetStream, stream_name: str, prefix: str, *, fence: int, keep: str = ""
) -> int:
    """Delete the consumers of a source (by `prefix`) other than `keep` and those with a newer fence; returns their
    number."""
    deleted = 0
    try:
        for name in await jetstream.consumer_names(stream_name):
            name_fence = fence_in(prefix, name)
            if name_fence is not None and name_fence <= fence and name != keep:
                deleted += await jetstream.delete_consumer(stream_name, name)
    except EddylineError as error:
        log.info("consumers not swept", extra=fields(stream=stream_name, error=error.message))
    if deleted:
        log.info("consumers swept", extra=fields(stream=stream_name, deleted=deleted))
    return deleted
