"""Protobuf of states: topics and their configuration, sources, folds.

Requests and answers share these functions. Values that a request may not have (an unknown kind, a class that is not
built) are refused with the contract's error.
"""

from __future__ import annotations

from typing import Final

from google.protobuf.unknown_fields import UnknownFieldSet

from eddyline.core.errors import InvalidArgument, NotYet
from eddyline.core.model.read import FoldState
from eddyline.core.model.source import (
    ControlState,
    Policy,
    SourceDefinition,
    SourceDetail,
    SourceInfo,
    SourceReport,
    SourceStop,
)
from eddyline.core.model.topic import ConfigChange, Discard, Durability, Kind, TopicConfig, TopicInfo, changed
from eddyline.v1 import apply_pb2, fold_pb2, topic_pb2

_POLICY_NUMBERS: Final[dict[Policy, apply_pb2.SourcePolicy.ValueType]] = {
    "RESYNC": apply_pb2.SOURCE_POLICY_RESYNC,
    "STOP": apply_pb2.SOURCE_POLICY_STOP,
}


def kind_from_pb(kind: int) -> Kind:
    """Decode a topic's kind.

    Raises:
        InvalidArgument: it is unset.
        NotYet: a kind that this version does not know.
    """
    if kind == topic_pb2.TOPIC_KIND_UNSPECIFIED:
        raise InvalidArgument("kind is missing: set KV or LOG", field="kind")
    try:
        return Kind(kind)
    except ValueError as error:
        raise NotYet(f"topic kind {kind} is not supported", field="kind", kind=kind) from error


def topic_config_to_pb(config: TopicConfig) -> topic_pb2.TopicConfig:
    """Encode a topic's settings, each of them set; no priority stays unset."""
    return topic_pb2.TopicConfig(
        durability=config.durability.value,  # type: ignore[arg-type]  # the stub asks for its own enum
        idempotency_window_ms=config.idempotency_window_ms,
        ttl_ms=config.ttl_ms,
        cap_records=config.cap_records,
        cap_bytes=config.cap_bytes,
        discard=config.discard.value,  # type: ignore[arg-type]  # the stub asks for its own enum
        priority=config.priority,
        dedupe_node=config.dedupe_node,
    )


def topic_config_from_pb(config: topic_pb2.TopicConfig) -> TopicConfig:
    """Decode the settings of a new topic, not checked yet (`check_config`); an unset field has its default.

    Raises:
        NotYet: as `config_change_from_pb`.
    """
    _check_known(config)
    return _settings(config)


def config_change_to_pb(change: ConfigChange) -> topic_pb2.TopicConfig:
    """Encode the settings that an update changes, and only those; `clear_priority` is a field of the request itself."""
    return topic_pb2.TopicConfig(
        durability=change.durability,  # type: ignore[arg-type]  # the stub asks for its own enum
        idempotency_window_ms=change.idempotency_window_ms,
        ttl_ms=change.ttl_ms,
        cap_records=change.cap_records,
        cap_bytes=change.cap_bytes,
        discard=change.discard,  # type: ignore[arg-type]  # the stub asks for its own enum
        priority=change.priority,
        dedupe_node=change.dedupe_node,
    )


def config_change_from_pb(config: topic_pb2.TopicConfig, *, clear_priority: bool = False) -> ConfigChange:
    """Decode the settings that an update changes, not checked yet (`merged`); an unset field keeps its value.

    A setting of a newer contract arrives as an unknown field. It is refused: ignoring it would make a topic that does
    not do what its owner requested.

    Raises:
        NotYet: a setting, class or discard that this version does not know.
    """
    _check_known(config)
    return _change(config, clear_priority=clear_priority)


def topic_info_to_pb(info: TopicInfo) -> topic_pb2.Topic:
    """Encode a topic."""
    return topic_pb2.Topic(
        name=info.name,
        epoch=info.epoch,
        kind=info.kind.value,  # type: ignore[arg-type]  # the stub asks for its own enum
        config=topic_config_to_pb(info.config),
        head_seq=info.head_seq,
        earliest_seq=info.earliest_seq,
        source=info.source,
        create_ts_ms=info.create_ts_ms,
        evict_floor=info.evict_floor,
        record_count=info.record_count,
        record_bytes=info.record_bytes,
        config_version=info.config_version,
        delete_mark=info.delete_mark,
    )


def topic_info_from_pb(topic: topic_pb2.Topic) -> TopicInfo:
    """Decode a topic of a store's answer. Settings of a newer contract are ignored: the store keeps them.

    Raises:
        InvalidArgument, NotYet: a kind, class or discard that this version does not know.
    """
    return TopicInfo(
        name=topic.name,
        epoch=topic.epoch,
        kind=kind_from_pb(topic.kind),
        config=_settings(topic.config),
        head_seq=topic.head_seq,
        earliest_seq=topic.earliest_seq,
        source=topic.source,
        create_ts_ms=topic.create_ts_ms,
        evict_floor=topic.evict_floor,
        record_count=topic.record_count,
        record_bytes=topic.record_bytes,
        config_version=topic.config_version,
        delete_mark=topic.delete_mark,
    )


def source_definition_to_pb(definition: SourceDefinition) -> apply_pb2.SourceDefinition:
    """Encode a source's definition."""
    return apply_pb2.SourceDefinition(
        name=definition.name,
        topic=definition.topic,
        bucket=definition.bucket,
        stream=definition.stream,
        key_prefixes=definition.key_prefixes,
        subjects=definition.subjects,
        on_expired=_POLICY_NUMBERS[definition.on_expired],
        on_recreated=_POLICY_NUMBERS[definition.on_recreated],
        dead_letter_topic=definition.dead_letter_topic,
    )


def source_definition_from_pb(definition: apply_pb2.SourceDefinition) -> SourceDefinition:
    """Decode a source's definition, its names unchecked.

    Raises:
        NotYet: a policy or a setting that this version does not know.
    """
    unknown = UnknownFieldSet(definition)
    if len(unknown):
        number = unknown[0].field_number
        raise NotYet(f"field {number} of a source is not supported", field="definition", fieldNumber=number)
    return SourceDefinition(
        definition.name,
        definition.topic,
        definition.bucket,
        stream=definition.stream,
        key_prefixes=tuple(definition.key_prefixes),
        subjects=tuple(definition.subjects),
        on_expired=policy_from_pb(definition.on_expired, "on_expired") or "RESYNC",
        on_recreated=policy_from_pb(definition.on_recreated, "on_recreated") or "STOP",
        dead_letter_topic=definition.dead_letter_topic,
    )


def policy_to_pb(policy: Policy | None) -> apply_pb2.SourcePolicy.ValueType:
    """Encode a policy; None = UNSPECIFIED."""
    return _POLICY_NUMBERS[policy] if policy is not None else apply_pb2.SOURCE_POLICY_UNSPECIFIED


def policy_from_pb(number: int, field: str) -> Policy | None:
    """Decode a policy; UNSPECIFIED = None. Errors name `field`.

    Raises:
        NotYet: one that this version does not know.
    """
    if number == apply_pb2.SOURCE_POLICY_UNSPECIFIED:
        return None
    for policy, value in _POLICY_NUMBERS.items():
        if value == number:
            return policy
    raise NotYet(f"policy {number} of a source is not supported", field=field, policy=number)


def source_info_to_pb(info: SourceInfo) -> apply_pb2.SourceState:
    """Encode a source as the store keeps it."""
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
        paused=info.control.paused,
        resync_serial=info.control.resync_serial,
        detail=source_detail_to_pb(info.report.detail),
        epoch=info.epoch,
        gap_count=info.gap_count,
        gap_ms=info.gap_ms,
        changed_ms=info.changed_ms,
        stop=apply_pb2.SourceStop(**info.stop._asdict()) if info.stop is not None else None,
    )


def source_info_from_pb(source: apply_pb2.SourceState) -> SourceInfo:
    """Decode a source of a store's answer."""
    return SourceInfo(
        definition=source_definition_from_pb(source.definition),
        position=source.position,
        fence=source.fence,
        holder=source.holder,
        lease_remaining_ms=source.lease_remaining_ms,
        report=SourceReport(
            source.state,
            source.state_reason,
            source.source_last_revision,
            source.lag,
            source_detail_from_pb(source.detail) if source.HasField("detail") else None,
        ),
        reported_ms=source.reported_ms,
        head_seq=source.head_seq,
        control=ControlState(source.paused, source.resync_serial),
        epoch=source.epoch,
        gap_count=source.gap_count,
        gap_ms=source.gap_ms,
        changed_ms=source.changed_ms,
        stop=SourceStop(source.stop.state, source.stop.reason, source.stop.position)
        if source.HasField("stop")
        else None,
    )


def source_detail_to_pb(detail: SourceDetail | None) -> apply_pb2.SourceDetail | None:
    """Encode a holder's report beyond state and position; None if it has none."""
    if detail is None:
        return None
    return apply_pb2.SourceDetail(
        state_ms=detail.state_ms,
        decision=detail.decision,
        decision_ms=detail.decision_ms,
        warnings=detail.warnings,
        file_drift=detail.file_drift,
        drift_count=detail.drift_count,
        verified_ms=detail.verified_ms,
        revisions_per_s=detail.revisions_per_s,
        remaining_ms=detail.remaining_ms,
    )


def source_detail_from_pb(detail: apply_pb2.SourceDetail) -> SourceDetail:
    """Decode a holder's report beyond state and position, unchecked."""
    return SourceDetail(
        state_ms=detail.state_ms,
        decision=detail.decision,
        decision_ms=detail.decision_ms,
        warnings=tuple(detail.warnings),
        file_drift=detail.file_drift,
        drift_count=detail.drift_count,
        verified_ms=detail.verified_ms,
        revisions_per_s=detail.revisions_per_s,
        remaining_ms=detail.remaining_ms,
    )


def fold_state_to_pb(state: FoldState) -> fold_pb2.FoldState:
    """Encode the state of a fold."""
    return fold_pb2.FoldState(
        fold_seq=state.fold_seq,
        epoch=state.epoch,
        source_state=state.source_state,
        staleness_ms=state.staleness_ms,
    )


def fold_state_from_pb(state: fold_pb2.FoldState) -> FoldState:
    """Decode the state of a fold."""
    return FoldState(state.fold_seq, state.epoch, state.source_state, state.staleness_ms)


def _settings(config: topic_pb2.TopicConfig) -> TopicConfig:
    """Return the settings; an unset field has its default."""
    return changed(TopicConfig(), _change(config, clear_priority=False))


def _change(config: topic_pb2.TopicConfig, *, clear_priority: bool) -> ConfigChange:
    has = config.HasField
    return ConfigChange(
        durability=_durability(config.durability),
        idempotency_window_ms=config.idempotency_window_ms if has("idempotency_window_ms") else None,
        ttl_ms=config.ttl_ms if has("ttl_ms") else None,
        cap_records=config.cap_records if has("cap_records") else None,
        cap_bytes=config.cap_bytes if has("cap_bytes") else None,
        discard=_discard(config.discard),
        priority=config.priority if has("priority") else None,
        dedupe_node=config.dedupe_node if has("dedupe_node") else None,
        clear_priority=clear_priority,
    )


def _check_known(config: topic_pb2.TopicConfig) -> None:
    if config.compact:
        raise NotYet("compact is not supported", field="config.compact")
    if config.HasField("delete_marker_keep_ms"):
        raise NotYet("delete_marker_keep_ms is not supported", field="config.delete_marker_keep_ms")
    unknown = UnknownFieldSet(config)
    if len(unknown):
        number = unknown[0].field_number
        raise NotYet(f"field {number} of a topic is not supported", field="config", fieldNumber=number)


def _durability(number: int) -> Durability | None:
    if number == topic_pb2.DURABILITY_UNSPECIFIED:
        return None
    try:
        return Durability(number)
    except ValueError as error:
        message = f"durability {number} is not supported"
        raise NotYet(message, field="config.durability", durability=number) from error


def _discard(number: int) -> Discard | None:
    if number == topic_pb2.DISCARD_UNSPECIFIED:
        return None
    try:
        return Discard(number)
    except ValueError as error:
        raise NotYet(f"discard {number} is not supported", field="config.discard", discard=number) from error
