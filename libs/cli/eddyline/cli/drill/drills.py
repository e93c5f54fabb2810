"""The drills by name, each with what it does, as the help has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    pass


_KILLED: Final = "SIGKILL for {}, again and again, under load"


_UPKEEP: Final = "SIGKILL for a store while it {}; what was deleted stays deleted"


DRILLS: Final = {
    "store": _KILLED.format("the store"),
    "ingest": _KILLED.format("ingest"),
    "delivery": _KILLED.format("delivery"),
    "nats": _KILLED.format("nats-server"),
    "all": _KILLED.format("all four at once"),
    "overrun": "NATS replaces unread revisions while ingest is down",
    "emptied": "a bucket is evicted past the cursor and purged while ingest is down, then deleted and created again",
    "rollback": "NATS is put back to an older copy of its store, behind the cursor and written past it again",
    "stalled": "the store hangs while a bucket is written at full speed",
    "takeover": "ingest is killed in the middle of a batch, and a second one takes over",
    "leader": "three NATS servers, SIGKILL for the one that leads the bucket's stream (not with --short)",
    "checkpoint": _UPKEEP.format("takes a checkpoint"),
    "merge": _UPKEEP.format("merges segments"),
    "rewrite": _UPKEEP.format("rewrites segments"),
    "disk": "the disk is full, and has room again",
    "clock": "the clock is set, forward and back, under topics with a time to live",
}
"""Each drill and what is done in it, in the order they run in; the last five run side by side."""
