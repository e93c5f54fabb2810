"""Where every call of the contract is answered in a cluster of several store shards: the one table.

Which field of a request names its topic is what `eddyline.core.auth.rules` says of its names. What is not in the table
(health, reflection, channelz) is answered by whoever is asked.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final

from eddyline.core.auth.rules import RULES

if TYPE_CHECKING:
    from collections.abc import Iterable


class Place(Enum):
    """Who answers a call."""

    HERE = auto()
    """Whoever is asked: it is of the role, or of the shard, itself."""
    TOPIC = auto()
    """The shard that owns the topic which the first message names."""
    SOURCE = auto()
    """The shard that has the source: that of its topic, which its name does not tell."""
    NEW_SOURCE = auto()
    """The shard that has a source of this name, else the one that owns its topic."""
    EACH = auto()
    """Whoever is asked, for topics of its own alone: a stream of roles with many topics."""
    ALL = auto()
    """Every shard, answers merged by name."""


TOPIC_SERVICE: Final = "eddyline.v1.TopicService"
LOG_SERVICE: Final = "eddyline.v1.LogService"
FOLD_SERVICE: Final = "eddyline.v1.FoldService"
SEGMENT_SERVICE: Final = "eddyline.v1.SegmentService"
APPLY_SERVICE: Final = "eddyline.v1.ApplyService"

LIST_TOPICS: Final = f"/{TOPIC_SERVICE}/ListTopics"
GET_SOURCE: Final = f"/{APPLY_SERVICE}/GetSource"


def _of(service: str, place: Place, *calls: str) -> dict[str, Place]:
    return {f"/{service}/{call}": place for call in calls}


TOPIC_CALLS: Final = ("CreateTopic", "UpdateTopic", "GetTopic", "ListTopics", "DeleteTopic", "EraseTopic")
APPEND_CALLS: Final = ("AppendRecords", "AppendStream")
READ_CALLS: Final = ("ReadRecords", "StreamRecords", "FindSeq")
ENTRY_CALLS: Final = ("GetEntry", "BatchGetEntries", "RangeEntries", "KeyHistory")
"""Of TopicService all, of LogService what ingest forwards and what delivery does, of FoldService what delivery does."""

ROUTES: Final[dict[str, Place]] = {
    **_of(TOPIC_SERVICE, Place.TOPIC, *(call for call in TOPIC_CALLS if call != "ListTopics")),
    LIST_TOPICS: Place.ALL,
    **_of(LOG_SERVICE, Place.TOPIC, *APPEND_CALLS, *READ_CALLS, "DeleteRecords"),
    **_of(FOLD_SERVICE, Place.TOPIC, *ENTRY_CALLS, "VerifyFold", "SettleFold"),
    # An artifact is its topic's, wherever the fold goes that is made of it.
    **_of(FOLD_SERVICE, Place.TOPIC, "ExportFold", "ImportFold", "ListArtifacts"),
    **_of(SEGMENT_SERVICE, Place.TOPIC, "PlanSplits", "ReadSplit"),
    **_of(APPLY_SERVICE, Place.SOURCE, "ApplyBatch", "GetSource", "ControlSource", "UpdateSource", "DeleteSource"),
    **_of(APPLY_SERVICE, Place.SOURCE, "AcquireLease", "RenewLease", "ReleaseLease"),
    **_of(APPLY_SERVICE, Place.NEW_SOURCE, "PutSource"),
    **_of(APPLY_SERVICE, Place.HERE, "ListSources"),  # the shard's, by its contract
    **_of(APPLY_SERVICE, Place.EACH, "FollowTopics"),
    # What follows has no shard: ingest and delivery ask the stores themselves.
    **_of("eddyline.v1.SourceService", Place.HERE, "CreateSource", "UpdateSource", "GetSource", "ListSources"),
    **_of("eddyline.v1.SourceService", Place.HERE, "PauseSource", "ResumeSource", "ResyncSource", "DeleteSource"),
    **_of("eddyline.v1.SourceService", Place.HERE, "CompareSource", "VerifySource"),
    **_of("eddyline.v1.KvService", Place.HERE, "PutEntry", "CreateEntry", "UpdateEntry", "DeleteEntry", "PurgeEntry"),
    **_of("eddyline.v1.DeliveryService", Place.HERE, "WatchTopics", "ExplainWatch"),
    **_of("eddyline.v1.ClusterService", Place.HERE, "GetTopology", "GetStatus"),
}


def topic_of(method: str, request: Any) -> str | None:
    """The topic that a message of a call names; None = it names none, and whoever answers says what is wrong with it.
    `request` is whatever the server makes of the message."""
    place = ROUTES[method]
    if place is Place.TOPIC:
        return next(iter(RULES[method].names(request)), None)
    if place is Place.NEW_SOURCE:
        return str(request.definition.topic) or None
    if place is Place.EACH:
        return str(request.add.topic) if request.WhichOneof("step") == "add" else None
    return None


def source_of(method: str, request: Any) -> str | None:
    """The source that a message names; None = none."""
    place = ROUTES[method]
    if place is Place.SOURCE:
        return str(request.source) or None
    return str(request.definition.name) or None if place is Place.NEW_SOURCE else None


def methods_of(service: str, calls: Iterable[str]) -> frozenset[str]:
    """Full names of calls of a service."""
    return frozenset(f"/{service}/{call}" for call in calls)
