"""States to and from protobuf: topics and their configuration, sources, folds.

Requests and answers share these; what a request must not say (an unknown kind, a class that is not built) is refused
with the contract's error, whoever sent it.
"""

from __future__ import annotations

from google.protobuf.unknown_fields import UnknownFieldSet

from eddyline.core.errors import InvalidArgument, InvalidConfig, NotYet
from eddyline.core.read import FoldState
from eddyline.core.source import SourceDefinition, SourceInfo, SourceReport
from eddyline.core.topic import (
    IDEMPOTENCY_WINDOW_MS_DEFAULT,
    IDEMPOTENCY_WINDOW_MS_MAX,
    Durability,
    Kind,
    TopicConfig,
    TopicInfo,
)
from eddyline.v1 import apply_pb2, fold_pb2, topic_pb2


def kind_from_pb(kind: int) -> Kind:
    """A topic's kind.

    Raises:
        InvalidArgument: it is unset.
        NotYet: a kind that this version does not know.
    """
    if kind == topic_pb2.TOPIC_KIND_UNSPECIFIED:
        raise InvalidArgument("a topic's kind must be named", field="kind")
    try:
        return Kind(kind)
    except ValueError as error:
        raise NotYet(f"topic kind {kind} is not built yet", field="kind", kind=kind) from error


def topic_config_to_pb(config: TopicConfig) -> topic_pb2.TopicConfig:
    """A topic's settings, each of them set."""
    return topic_pb2.TopicConfig(
        durability=config.durability.value,  # type: ignore[arg-type]  # the stub asks for its own enum
        idempotency_window_ms=config.idempotency_window_ms,
    )


def topic_config_from_pb(config: topic_pb2.TopicConfig) -> TopicConfig:
    """The settings that a request asks for; what is unset has its default.

    A setting that this version does not know arrives as an unknown field, since a newer contract has it: passing it over
    would make a topic that does not do what its owner was told.

    Raises:
        NotYet: a setting or a class that this version does not know.
        InvalidConfig: a window out of its bounds.
    """
    unknown = UnknownFieldSet(config)
    if len(unknown):
        number = unknown[0].field_number
        raise NotYet(f"setting {number} of a topic is not built yet", field="config", fieldNumber=number)
    return _known_settings(config)


def topic_info_to_pb(info: TopicInfo) -> topic_pb2.Topic:
    """A topic."""
    return topic_pb2.Topic(
        name=info.name,
        epoch=info.epoch,
        kind=info.kind.value,  # type: ignore[arg-type]  # the stub asks for its own enum
        config=topic_config_to_pb(info.config),
        head_seq=info.head_seq,
        earliest_seq=info.earliest_seq,
        source=info.source,
        create_ts_ms=info.create_ts_ms,
    )


def topic_info_from_pb(topic: topic_pb2.Topic) -> TopicInfo:
    """A topic of a store's answer. Settings of a newer contract are passed over: they are the store's to keep.

    Raises:
        InvalidArgument, NotYet, InvalidConfig: a kind or class that this version does not know, or a wrong window.
    """
    return TopicInfo(
        name=topic.name,
        epoch=topic.epoch,
        kind=kind_from_pb(topic.kind),
        config=_known_settings(topic.config),
        head_seq=topic.head_seq,
        earliest_seq=topic.earliest_seq,
        source=topic.source,
        create_ts_ms=topic.create_ts_ms,
    )


def source_definition_to_pb(definition: SourceDefinition) -> apply_pb2.SourceDefinition:
    """A source's definition."""
    return apply_pb2.SourceDefinition(name=definition.name, topic=definition.topic, bucket=definition.bucket)


def source_definition_from_pb(definition: apply_pb2.SourceDefinition) -> SourceDefinition:
    """A source's definition, its names unchecked."""
    return SourceDefinition(definition.name, definition.topic, definition.bucket)


def source_info_to_pb(info: SourceInfo) -> apply_pb2.SourceState:
    """A source."""
    return apply_pb2.SourceState(
        definition=source_definition_to_pb(info.definition),
        position=info.position,
        fence=info.fence,
        holder=info.holder,
        lease_remaining_ms=info.lease_remaining_ms,
        state=info.report.state,
        state_reason=info.report.reason,
        head_seq=info.head_seq,
        reported_ms=info.reported_ms,
        source_last_revision=info.report.last_revision,
        lag=info.report.lag,
    )


def source_info_from_pb(source: apply_pb2.SourceState) -> SourceInfo:
    """A source."""
    return SourceInfo(
        definition=source_definition_from_pb(source.definition),
        position=source.position,
        fence=source.fence,
        holder=source.holder,
        lease_remaining_ms=source.lease_remaining_ms,
        report=SourceReport(source.state, source.state_reason, source.source_last_revision, source.lag),
        reported_ms=source.reported_ms,
        head_seq=source.head_seq,
    )


def fold_state_to_pb(state: FoldState) -> fold_pb2.FoldState:
    """Where a fold stands."""
    return fold_pb2.FoldState(
        fold_seq=state.fold_seq,
        epoch=state.epoch,
        source_state=state.source_state,
        staleness_ms=state.staleness_ms,
    )


def fold_state_from_pb(state: fold_pb2.FoldState) -> FoldState:
    """Where a fold stands."""
    return FoldState(state.fold_seq, state.epoch, state.source_state, state.staleness_ms)


def _known_settings(config: topic_pb2.TopicConfig) -> TopicConfig:
    durability, window_ms = Durability.DISK, IDEMPOTENCY_WINDOW_MS_DEFAULT
    if config.durability != topic_pb2.DURABILITY_UNSPECIFIED:
        try:
            durability = Durability(config.durability)
        except ValueError as error:
            raise NotYet(
                f"durability {config.durability} is not built yet",
                field="config.durability",
                durability=config.durability,
            ) from error
    if config.HasField("idempotency_window_ms"):
        window_ms = config.idempotency_window_ms
        if not 1 <= window_ms <= IDEMPOTENCY_WINDOW_MS_MAX:
            raise InvalidConfig(
                f"an idempotency window of {window_ms} ms is not within 1 and {IDEMPOTENCY_WINDOW_MS_MAX}",
                field="config.idempotency_window_ms",
                windowMs=window_ms,
                limitMs=IDEMPOTENCY_WINDOW_MS_MAX,
            )
    return TopicConfig(durability, window_ms)
