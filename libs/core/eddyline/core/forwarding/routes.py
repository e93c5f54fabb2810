"""Routes: the one table that says where each call of the contract is answered in a cluster of several store shards.

`eddyline.core.auth.rules` defines which field of a request names its topic. Calls that are not in the table (health,
reflection, channelz) are answered by the role that received them.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final

from eddyline.core.auth.rules import RULES

if TYPE_CHECKING:
    from collections.abc import Iterable


class Route(Enum):
    """Rule that selects the role or shard that answers a call."""

    HERE = auto()
    """The receiver: the call is about the role, or the shard, itself."""
    TOPIC = auto()
    """The shard that owns the topic which the first message names."""
    SOURCE = auto()
    """The shard that has the source: that of its topic, which its name does not contain."""
    NEW_SOURCE = auto()
    """The shard that has a source of this name, else the one that owns its topic."""
    EACH = auto()
    """The receiver, for topics of its own alone: a stream of roles with many topics."""
    ALL = auto()
    """Every shard, answers merged by name."""


TOPIC_SERVICE: Final = "eddyline.v1.TopicService"
LOG_SERVICE: Final = "eddyline.v1.LogService"
FOLD_SERVICE: Final = "eddyline.v1.FoldService"
SEGMENT_SERVICE: Final = "eddyline.v1.SegmentService"
APPLY_SERVICE: Final = "eddyline.v1.ApplyService"

LIST_TOPICS: Final = f"/{TOPIC_SERVICE}/ListTopics"
GET_SOURCE: Final = f"/{APPLY_SERVICE}/GetSource"


def _of(service: str, route: Route, *calls: str) -> dict[str, Route]:
    return {f"/{service}/{call}": route for call in calls}


TOPIC_CALLS: Final = ("CreateTopic", "UpdateTopic", "GetTopic", "ListTopics", "DeleteTopic", "EraseTopic")
APPEND_CALLS: Final = ("AppendRecords", "AppendStream")
READ_CALLS: Final = ("ReadRecords", "StreamRecords", "FindSeq")
ENTRY_CALLS: Final = ("GetEntry", "BatchGetEntries", "RangeEntries", "KeyHistory")
"""Of TopicService all, of LogService the calls that ingest and delivery forward, of FoldService those of delivery."""

ROUTES: Final[dict[str, Route]] = {
    **_of(TOPIC_SERVICE, Route.TOPIC, *(call for call in TOPIC_CALLS if call != "ListTopics")),
    LIST_TOPICS: Route.ALL,
    **_of(LOG_SERVICE, Route.TOPIC, *APPEND_CALLS, *READ_CALLS, "DeleteRecords"),
    **_of(FOLD_SERVICE, Route.TOPIC, *ENTRY_CALLS, "VerifyFold", "SettleFold"),
    # An artifact belongs to its topic, into whichever fold it is imported.
    **_of(FOLD_SERVICE, Route.TOPIC, "ExportFold", "ImportFold", "ListArtifacts"),
    **_of(SEGMENT_SERVICE, Route.TOPIC, "PlanSplits", "ReadSplit"),
    **_of(APPLY_SERVICE, Route.SOURCE, "ApplyBatch", "ApplyStream", "AcquireLease", "RenewLease", "ReleaseLease"),
    **_of(APPLY_SERVICE, Route.SOURCE, "GetSource", "ControlSource", "UpdateSource", "DeleteSource"),
    **_of(APPLY_SERVICE, Route.NEW_SOURCE, "PutSource"),
    **_of(APPLY_SERVICE, Route.HERE, "ListSources"),  # the shard's, by its contract
    **_of(APPLY_SERVICE, Route.EACH, "FollowTopics"),
    # These calls have no shard: ingest and delivery call the stores themselves.
    **_of("eddyline.v1.SourceService", Route.HERE, "CreateSource", "UpdateSource", "GetSource", "ListSources"),
    **_of("eddyline.v1.SourceService", Route.HERE, "PauseSource", "ResumeSource", "ResyncSource", "DeleteSource"),
    **_of("eddyline.v1.SourceService", Route.HERE, "CompareSource", "VerifySource"),
    **_of("eddyline.v1.KvService", Route.HERE, "PutEntry", "CreateEntry", "UpdateEntry", "DeleteEntry", "PurgeEntry"),
    **_of("eddyline.v1.DeliveryService", Route.HERE, "WatchTopics", "ExplainWatch"),
    **_of("eddyline.v1.ClusterService", Route.HERE, "GetTopology", "GetStatus"),
}


def requested_topic(method: str, request: Any) -> str | None:
    """Return the topic that a message of a call names; None = none, and the handler raises the error.

    `request` is the server's parsed message.
    """
    route = ROUTES[method]
    if route is Route.TOPIC:
        return next(iter(RULES[method].names(request)), None)
    if route is Route.NEW_SOURCE:
        return str(request.definition.topic) or None
    if route is Route.EACH:
        return str(request.add.topic) if request.WhichOneof("step") == "add" else None
    return None


def requested_source(method: str, request: Any) -> str | None:
    """Return the source that a message names; None = none."""
    route = ROUTES[method]
    if route is Route.SOURCE:
        return str(request.source) or None
    return str(request.definition.name) or None if route is Route.NEW_SOURCE else None


def methods_of(service: str, calls: Iterable[str]) -> frozenset[str]:
    """Return the full names of a service's calls."""
    return frozenset(f"/{service}/{call}" for call in calls)
