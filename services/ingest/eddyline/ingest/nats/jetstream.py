"""JetStream's API, as far as ingest needs it: raw requests, typed answers.

nats-py's own layer has no creation time in nanoseconds, no paged subjects, and creates consumers and subscriptions of its
own behind some calls. In a cluster any server answers for a stream without a leader, from its last knowledge, and a
leader that was cut off acts as one for a while: in such an answer the missing part looks deleted, or rolled back. So
figures and subjects of a stream are accepted only from a leader with a majority.
Failure: no answer, no connection, or a refusal is `NatsUnreachable` with the server's description; a stream that does not
exist is `BucketNotFound`; a message or consumer that does not exist is None or False.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypedDict

from nats.errors import Error as NatsError

from eddyline.core.errors import BucketNotFound, NatsUnreachable
from eddyline.ingest.nats.bucket import BucketInfo
from eddyline.ingest.nats.key_rule import (
    BUCKET_STREAM,
    SUBJECTS_SHOWN,
    KeyRule,
    StraySubjects,
    own_rule,
    possible_rules,
    rule_of,
)
from eddyline.ingest.nats.request import request
from eddyline.ingest.nats.stream import BUCKET_PATTERN, STREAM_PATTERN, Stream, server_time_ns

if TYPE_CHECKING:
    from eddyline.core.model.source import SourceDefinition
    from eddyline.ingest.nats.connection import Connection

PEER_LAG_MAX: Final = 1_000
"""Operations: a current server below it is as close to its leader as the network allows."""
TIMEOUT_S: Final = 5.0
"""Default in nats-py: 0.5 s (request) or 5 s (JetStream calls). A leader election takes up to 4 s."""
LISTING_TIMEOUT_S: Final = 15.0
"""100 000 names take 0.15 s of an idle server."""
PAGES_MAX: Final = 10_000
"""A thousand million names: above it the server's paging does not end."""
INACTIVE_THRESHOLD_NS: Final = 30_000_000_000

REPLICA_ACTIVE_NS_MAX: Final = 3_000_000_000
"""A replica active so recently has elected no other leader: servers wait for at least 4 s before they do."""

_UNAVAILABLE: Final = 10008
_STREAM_NOT_FOUND: Final = 10059
_MESSAGE_NOT_FOUND: Final = 10037
_CONSUMER_NOT_FOUND: Final = 10014
_BEHIND_ALL: Final = 1 << 40
"""Offset behind every subject: the server counts them and lists none."""
_EVERY_SUBJECT: Final = KeyRule(b"", "")
"""Rule of a stream without a bucket: a subject is a key."""
_REPLACED: Final = "\N{REPLACEMENT CHARACTER}"

Json = dict[str, object]
DeliverPolicy = Literal["by_start_sequence", "last_per_subject"]


class StreamMessage(TypedDict):
    """A message as STREAM.MSG.GET returns it. `time_ns` = when NATS stored it."""

    subject: str
    seq: int
    time_ns: int
    data: bytes
    headers: bytes


class MadeConsumer(NamedTuple):
    """Messages pending for a consumer, and the server's bound for one pull, 0 = none."""

    pending: int
    batch_max: int


@dataclass(frozen=True, slots=True)
class Subjects:
    """All subjects of a bucket that have a message. `paged` = read at several moments; `most` = messages of the subject with
    the most."""

    names: frozenset[bytes]
    paged: bool
    most: int = 0


class JetStream:
    """See the module. `domain` is that of a leaf node's hub; empty = the server's own."""

    def __init__(self, connection: Connection, *, domain: str = "") -> None:
        self._connection = connection
        self.domain = domain
        self.prefix = f"$JS.{domain}.API" if domain else "$JS.API"

    async def stream(self, bucket: str) -> Stream:
        """Return the stream of a bucket.

        Raises:
            BucketNotFound, NatsUnreachable.
        """
        return await self._bucket_stream(bucket, await self._bucket_info(bucket))

    async def named_stream(self, name: str) -> Stream:
        """Return a stream by its name.

        Raises:
            BucketNotFound, NatsUnreachable.
        """
        if not STREAM_PATTERN.fullmatch(name):
            raise BucketNotFound(f"{name!r} is not a valid stream name", stream=name)
        return _stream_of(
            await self._request(f"STREAM.INFO.{name}", {}, origin=f"stream {name}"), bucket="", rule=_EVERY_SUBJECT
        )

    async def source_stream(self, definition: SourceDefinition) -> Stream:
        """Return the stream that a source reads.

        Raises:
            BucketNotFound, NatsUnreachable.
        """
        if definition.bucket:
            return await self.stream(definition.bucket)
        return await self.named_stream(definition.stream)

    async def refresh(self, stream: Stream) -> Stream:
        """Return the stream of this name as it is now.

        Raises:
            BucketNotFound, NatsUnreachable.
        """
        return await (self.stream(stream.bucket) if stream.bucket else self.named_stream(stream.name))

    async def bucket(self, name: str, *, timeout_s: float = TIMEOUT_S) -> BucketInfo:
        """Return a bucket with the settings that bound its writes.

        Raises:
            BucketNotFound, NatsUnreachable.
        """
        answer = await self._bucket_info(name, timeout_s)
        config = _object(answer, "config")
        return BucketInfo(
            stream=await self._bucket_stream(name, answer),
            message_bytes_max=max(_number(config, "max_msg_size"), 0),
            mirror=isinstance(config.get("mirror"), dict),
            sealed=config.get("sealed") is True,
            rollup=config.get("allow_rollup_hdrs") is True,
        )

    async def subjects(self, stream: Stream) -> Subjects:
        """List every subject of the bucket that has a message now.

        Raises:
            BucketNotFound, NatsUnreachable: the list is incomplete.
        """
        names: set[bytes] = set()
        offset = most = 0
        for page in range(PAGES_MAX):
            body: Json = {"subjects_filter": stream.filter_subject, "offset": offset}
            path = f"STREAM.INFO.{stream.name}"
            answer = await self._request(path, body, origin=stream.origin, timeout_s=LISTING_TIMEOUT_S)
            if server_time_ns(_text(answer, "created")) != stream.created_ns:
                raise NatsUnreachable(f"stream {stream.name} was recreated while its subjects were listed")
            counts = _object(answer, "state").get("subjects")
            counts = counts if isinstance(counts, dict) else {}
            listed = [name.encode() for name in counts]
            names.update(listed)
            most = max([most, *counts.values()])
            offset += len(listed)
            if not listed or offset >= _number(answer, "total"):
                return Subjects(frozenset(names), page > 0, most)
        raise NatsUnreachable(f"the list of subjects of {stream.name} exceeds {PAGES_MAX} pages")

    async def stray_subjects(self, stream: Stream) -> StraySubjects | None:
        """Subjects of a bucket's stream that are none of its keys; None = it holds none.

        One request if there is none, which counts on the server and lists nothing.

        Raises:
            BucketNotFound, NatsUnreachable.
        """
        if not stream.bucket or not stream.message_count:
            return None
        path = f"STREAM.INFO.{stream.name}"
        body: Json = {"subjects_filter": stream.filter_subject, "offset": _BEHIND_ALL}
        answer = await self._request(path, body, origin=stream.origin, timeout_s=LISTING_TIMEOUT_S)
        held = _number(_object(answer, "state"), "num_subjects")
        count = held - _number(answer, "total")
        first: list[str] = []
        offset = 0
        for _ in range(PAGES_MAX if count > 0 else 0):
            body = {"subjects_filter": ">", "offset": offset}
            answer = await self._request(path, body, origin=stream.origin, timeout_s=LISTING_TIMEOUT_S)
            counts = _object(answer, "state").get("subjects")
            listed = list(counts) if isinstance(counts, dict) else []
            first += sorted(name for name in listed if not name.encode().startswith(stream.prefix))
            offset += len(listed)
            if not listed or len(first) >= SUBJECTS_SHOWN or offset >= _number(answer, "total"):
                break
        # A key that came between the server's two counts is no stray; the list then has none.
        return StraySubjects(max(count, len(first)), held, tuple(first[:SUBJECTS_SHOWN])) if first else None

    async def message_at(self, stream: Stream, revision: int) -> StreamMessage | None:
        """The message of one revision; None = it is gone."""
        return await self._message(stream, {"seq": revision})

    async def last_message(self, stream: Stream, subject: str) -> StreamMessage | None:
        """The newest message of one subject; None = none."""
        return await self._message(stream, {"last_by_subj": subject})

    async def next_message(self, stream: Stream, revision: int) -> StreamMessage | None:
        """The first message from `revision` (inclusive) on, of any subject; None = none now."""
        return await self._message(stream, {"seq": revision, "next_by_subj": ">"})

    async def newest_message(self, stream: Stream, revision: int) -> StreamMessage | None:
        """The message with the highest revision up to `revision` (inclusive) that is left; None = none.

        One request if `revision` itself is left; else about twice as many as the distance to the message has bits.
        """
        if revision < max(stream.first_revision, 1):
            return None
        message = await self.message_at(stream, revision)
        if message is not None and not message["subject"].encode().startswith(stream.prefix):
            message = None  # no key of the bucket
        empty_from, step = revision, 1  # nothing is left from there up to `revision`
        while message is None and empty_from > stream.first_revision:
            start = max(revision - step, stream.first_revision)
            message = await self._next_up_to(stream, start, revision)
            if message is None:
                empty_from, step = start, 2 * step
        while message is not None and message["seq"] + 1 < empty_from:
            middle = (message["seq"] + 1 + empty_from) // 2
            later = await self._next_up_to(stream, middle, revision)
            if later is None:
                empty_from = middle
            else:
                message = later
        return message

    async def _next_up_to(self, stream: Stream, revision: int, through: int) -> StreamMessage | None:
        message = await self.next_message(stream, revision)
        return message if message is not None and message["seq"] <= through else None

    async def create_consumer(
        self, stream: Stream, name: str, *, policy: DeliverPolicy, start_revision: int, metadata: dict[str, str]
    ) -> MadeConsumer:
        """Create a pull consumer without acknowledgements, within the limits that the stream sets for consumers.

        From a revision on it brings every message of the stream, also those that are no key of the bucket.
        """
        config: Json = {
            "name": name,
            "deliver_policy": policy,
            "ack_policy": "none",
            "replay_policy": "instant",
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": min(INACTIVE_THRESHOLD_NS, stream.inactive_ns_max or INACTIVE_THRESHOLD_NS),
            "metadata": metadata,
        }
        if policy == "by_start_sequence":
            config["opt_start_seq"] = start_revision
        if policy == "last_per_subject":
            config["filter_subject"] = stream.filter_subject
        path = f"CONSUMER.CREATE.{stream.name}.{name}"
        if "filter_subject" in config:
            path += f".{stream.filter_subject}"
        body: Json = {"stream_name": stream.name, "config": config, "action": "create"}
        answer = await self._request(path, body, origin=stream.origin)
        made = answer.get("config")
        batch_max = _number(made, "max_batch") if isinstance(made, dict) else 0
        return MadeConsumer(_number(answer, "num_pending"), max(batch_max, 0))

    async def delete_consumer(self, stream_name: str, name: str) -> bool:
        """Delete a consumer; False = it did not exist."""
        answer = await self._request(f"CONSUMER.DELETE.{stream_name}.{name}", {}, absent=_CONSUMER_NOT_FOUND)
        return bool(answer)

    async def consumer_names(self, stream_name: str) -> list[str]:
        """Names of all consumers of a stream."""
        names: list[str] = []
        for _ in range(PAGES_MAX):
            answer = await self._request(
                f"CONSUMER.NAMES.{stream_name}", {"offset": len(names)}, absent=_STREAM_NOT_FOUND
            )
            listed = answer.get("consumers")
            names += [str(name) for name in listed] if isinstance(listed, list) else []
            if not listed or len(names) >= _number(answer, "total"):
                return names
        raise NatsUnreachable(f"the list of consumers of {stream_name} exceeds {PAGES_MAX} pages")

    async def _bucket_stream(self, bucket: str, answer: Json) -> Stream:
        """A bucket's stream, with the rule of its keys. Reads a message only if the configuration leaves the rule open."""
        config = _object(answer, "config")
        rules = possible_rules(bucket, config)
        stream = _stream_of(answer, bucket=bucket, rule=rules[0])
        is_mirror = isinstance(config.get("mirror"), dict)
        if stream.message_count and (is_mirror or len(rules) > 1):
            first = await self.next_message(stream, stream.first_revision)
            if first is not None:
                rule = rule_of(rules, first["subject"].encode(), is_mirror=is_mirror)
                stream = _stream_of(answer, bucket=bucket, rule=rule)
        return stream

    async def _bucket_info(self, bucket: str, timeout_s: float = TIMEOUT_S) -> Json:
        if not BUCKET_PATTERN.fullmatch(bucket):
            raise BucketNotFound(f"{bucket!r} is not a valid bucket name", bucket=bucket)
        return await self._request(
            f"STREAM.INFO.{BUCKET_STREAM}{bucket}", {}, origin=f"bucket {bucket}", timeout_s=timeout_s
        )

    async def _message(self, stream: Stream, query: Json) -> StreamMessage | None:
        answer = await self._request(
            f"STREAM.MSG.GET.{stream.name}", query, origin=stream.origin, absent=_MESSAGE_NOT_FOUND
        )
        if not answer:
            return None
        message = _object(answer, "message")
        try:
            stored_ns = server_time_ns(_text(message, "time"))
        except ValueError as error:
            raise NatsUnreachable(f"NATS returned a message of {stream.name} without a time") from error
        return StreamMessage(
            subject=_text(message, "subject"),
            seq=_number(message, "seq"),
            time_ns=stored_ns,
            data=base64.b64decode(str(message.get("data", ""))),
            headers=base64.b64decode(str(message.get("hdrs", ""))),
        )

    async def _request(
        self, path: str, body: Json, *, origin: str = "", absent: int = 0, timeout_s: float = TIMEOUT_S
    ) -> Json:
        """Send a request; returns an empty answer if the server replies with error code `absent`."""
        try:
            client = self._connection.client
            with self._connection.publishing(f"{self.prefix}.{path}") as publishing:
                reply = await request(client, publishing, json.dumps(body).encode(), timeout_s=timeout_s)
            if reply is None:
                raise publishing.error()
            answer = json.loads(reply)
        except (NatsError, OSError, TimeoutError) as error:
            self._connection.note_no_answer()
            raise NatsUnreachable(f"NATS did not answer {path}: {str(error) or type(error).__name__}") from error
        except ValueError as error:
            raise NatsUnreachable(f"the answer of NATS to {path} is not JSON") from error
        if not isinstance(answer, dict):
            raise NatsUnreachable(f"the answer of NATS to {path} is not an object")
        refusal = answer.get("error")
        code = refusal.get("err_code", 0) if isinstance(refusal, dict) else 0
        if code == _UNAVAILABLE or not has_majority(answer):
            self._connection.note_no_answer()
        else:
            self._connection.note_answer()
        if isinstance(refusal, dict):
            if absent and code == absent:
                return {}
            if code == _STREAM_NOT_FOUND and origin:
                kind, _, name = origin.partition(" ")
                raise BucketNotFound(f"NATS has no {origin}", **{kind: name})
            raise NatsUnreachable(f"NATS refused {path}: {refusal.get('description', '')} ({code})", errCode=str(code))
        if not has_majority(answer):
            raise NatsUnreachable(f"NATS answered {path} without a leader that has a majority")
        return answer


def nameable(subject: bytes) -> bool:
    """True = the API, whose names are JSON, can express this subject exactly; the server accepts any bytes in subjects."""
    try:
        return _REPLACED not in subject.decode()
    except UnicodeDecodeError:
        return False


def has_majority(answer: Json) -> bool:
    """False = the answer is about a replicated stream, and not from a leader that is in contact with a majority. Else
    True."""
    cluster = answer.get("cluster")
    if not isinstance(cluster, dict):
        return True  # a single server, or no answer about a stream
    if not cluster.get("leader"):
        return False
    replicas = cluster.get("replicas")
    others = [replica for replica in replicas if isinstance(replica, dict)] if isinstance(replicas, list) else []
    return 2 * (1 + sum(map(_is_active, others))) > 1 + len(others)


def _is_active(replica: Json) -> bool:
    active_ns = replica.get("active", 0)
    is_recent = isinstance(active_ns, int) and 0 < active_ns <= REPLICA_ACTIVE_NS_MAX
    return not replica.get("offline") and (replica.get("current") is True or is_recent)


def peer_troubles(answer: Json) -> list[str]:
    """Servers of a replicated stream that lag behind its leader or are offline, as texts. Without one more of them there may
    be no majority, and acknowledged messages are on fewer disks than the stream's replicas say."""
    cluster = answer.get("cluster")
    replicas = cluster.get("replicas") if isinstance(cluster, dict) else None
    troubles = []
    for replica in replicas if isinstance(replicas, list) else []:
        if not isinstance(replica, dict):
            continue
        lag = replica.get("lag")
        behind = lag if isinstance(lag, int) else 0
        if replica.get("offline") is True:
            troubles.append(f"NATS server {replica.get('name')} is offline")
        elif replica.get("current") is not True or behind > PEER_LAG_MAX:
            troubles.append(f"NATS server {replica.get('name')} lags behind the leader, by {behind} operations")
    return troubles


def _stream_of(answer: Json, *, bucket: str, rule: KeyRule) -> Stream:
    config, state = _object(answer, "config"), _object(answer, "state")
    try:
        created_ns, server_ns = server_time_ns(_text(answer, "created")), server_time_ns(_text(answer, "ts"))
        first_ns = max(server_time_ns(_text(state, "first_ts")), 0)  # of an empty stream: the year 1
    except ValueError as error:
        raise NatsUnreachable(f"NATS returned no creation time for {bucket or _text(config, 'name')}") from error
    return Stream(
        name=_text(config, "name"),
        bucket=bucket,
        prefix=rule.prefix,
        created_ns=created_ns,
        server_ns=server_ns,
        first_revision=_number(state, "first_seq"),
        first_ns=first_ns,
        last_revision=_number(state, "last_seq"),
        # of a stream without a bucket every message is read, whatever its subject
        plain=not bucket or (config.get("subjects") == [rule.prefix.decode() + ">"] and not config.get("sources")),
        history=max(_number(config, "max_msgs_per_subject"), 0),
        discard_new=config.get("discard") == "new",
        max_age_ns=_number(config, "max_age"),
        msg_ttl=config.get("allow_msg_ttl") is True,
        expiry_markers=_number(config, "subject_delete_marker_ttl") > 0,
        limited=_number(config, "max_msgs") > 0 or _number(config, "max_bytes") > 0,
        message_count=_number(state, "messages"),
        subject_count=_number(state, "num_subjects"),
        unfit=_unfit(config, own_rule(bucket).prefix.decode() if bucket else ""),
        rule_name=rule.name,
        inactive_ns_max=_inactive_ns_max(config),
        peer_troubles=tuple(peer_troubles(answer)),
    )


def _unfit(config: Json, prefix: str) -> str:
    """Why a stream of this configuration cannot be copied; `prefix` = of a bucket's keys, "" = a stream without a bucket."""
    if config.get("retention") == "workqueue":
        return (
            "it is a work queue, which gives each message to one consumer only: copy a stream that has it as its source"
        )
    subjects = config.get("subjects")
    listed = [str(subject) for subject in subjects] if isinstance(subjects, list) else []
    if not prefix or config.get("mirror") or config.get("sources") or any(_covers(one, prefix) for one in listed):
        return ""
    return f"it is not a bucket: none of its subjects is {prefix}>"


def _inactive_ns_max(config: Json) -> int:
    """The longest inactivity that the stream allows a consumer, 0 = no bound."""
    limits = config.get("consumer_limits")
    return max(_number(limits, "inactive_threshold"), 0) if isinstance(limits, dict) else 0


def _covers(subject: str, prefix: str) -> bool:
    """Whether a stream's subject matches keys of a bucket."""
    return subject.startswith(prefix) or subject in (">", "$KV.>", "$KV.*.>")


def _object(answer: Json, name: str) -> Json:
    value = answer.get(name)
    if not isinstance(value, dict):
        raise NatsUnreachable(f"an answer of NATS has no {name}")
    return value


def _number(answer: Json, name: str) -> int:
    value = answer.get(name, 0)
    if not isinstance(value, int):
        raise NatsUnreachable(f"an answer of NATS has a {name} that is not a number")
    return value


def _text(answer: Json, name: str) -> str:
    value = answer.get(name, "")
    if not isinstance(value, str):
        raise NatsUnreachable(f"an answer of NATS has a {name} that is not text")
    return value
