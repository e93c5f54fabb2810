"""Round trips of states through protobuf."""

from __future__ import annotations

import pytest

from eddyline.core.codec.state import (
    config_change_from_pb,
    config_change_to_pb,
    fold_state_from_pb,
    fold_state_to_pb,
    kind_from_pb,
    source_info_from_pb,
    source_info_to_pb,
    topic_config_from_pb,
    topic_config_to_pb,
    topic_info_from_pb,
    topic_info_to_pb,
)
from eddyline.core.errors import EddylineError, InvalidArgument, NotYet
from eddyline.core.model.read import FoldState
from eddyline.core.model.source import ControlState, SourceDefinition, SourceDetail, SourceInfo, SourceReport
from eddyline.core.model.topic import ConfigChange, Discard, Durability, Kind, TopicConfig, TopicInfo
from eddyline.v1 import topic_pb2


def test_topics_survive_a_round_trip() -> None:
    info = TopicInfo("t", 7, Kind.KV, TopicConfig(Durability.FSYNC, 9), 5, 2, "s", 11, 1, 4, 99, 3, delete_mark=8)
    back = topic_info_from_pb(topic_info_to_pb(info))
    assert (back, back.delete_mark) == (info, 8)


def test_an_unset_configuration_is_the_default() -> None:
    assert topic_config_from_pb(topic_pb2.TopicConfig()) == TopicConfig()


def test_settings_survive_a_round_trip() -> None:
    config = TopicConfig(Durability.FSYNC, 9, 8, 7, 64, Discard.REJECT, -3, False)
    assert topic_config_from_pb(topic_config_to_pb(config)) == config


@pytest.mark.parametrize(
    "change",
    [
        ConfigChange(),
        ConfigChange(ttl_ms=0, cap_records=0, cap_bytes=0, priority=0, dedupe_node=False),
        ConfigChange(Durability.FSYNC, 9, 8, 7, 64, Discard.REJECT, -3, True),
    ],
)
def test_a_change_distinguishes_zero_from_unset(change: ConfigChange) -> None:
    assert config_change_from_pb(config_change_to_pb(change)) == change


@pytest.mark.parametrize(
    ("config", "field"),
    [
        (topic_pb2.TopicConfig(durability=4), "config.durability"),  # type: ignore[arg-type]
        (topic_pb2.TopicConfig(discard=3), "config.discard"),  # type: ignore[arg-type]
        (topic_pb2.TopicConfig(compact=True), "config.compact"),
        (topic_pb2.TopicConfig(delete_marker_keep_ms=86_400_000), "config.delete_marker_keep_ms"),
    ],
)
def test_unsupported_settings_are_refused_as_not_yet(config: topic_pb2.TopicConfig, field: str) -> None:
    with pytest.raises(NotYet) as raised:
        topic_config_from_pb(config)
    assert raised.value.metadata["field"] == field


def test_compact_false_is_accepted() -> None:
    assert topic_config_from_pb(topic_pb2.TopicConfig(compact=False)) == TopicConfig()


@pytest.mark.parametrize(("kind", "error"), [(0, InvalidArgument), (3, NotYet)])
def test_an_unknown_kind_is_refused(kind: int, error: type[EddylineError]) -> None:
    with pytest.raises(error):
        kind_from_pb(kind)


def test_sources_survive_a_round_trip() -> None:
    detail = SourceDetail(1, "RESYNCING: asked for", 2, ("a", "b"), "differs", 3, 4, 5, 6)
    for report in (SourceReport("LIVE", "why", 9, 1), SourceReport("LIVE", "why", 9, 1, detail)):
        info = SourceInfo(SourceDefinition("s", "t", "b"), b"\0p", 3, "h", 400, report, -1, 8, ORDERS, 7, 6, 5, 4)
        assert source_info_from_pb(source_info_to_pb(info)) == info


def test_fold_states_survive_a_round_trip() -> None:
    state = FoldState(5, 7, "LIVE", 12)
    assert fold_state_from_pb(fold_state_to_pb(state)) == state


ORDERS = ControlState(paused=True, resync_serial=2)
UNKNOWN_SETTING = b"\x78\x05"


def test_a_newer_setting_is_refused_in_a_request_and_ignored_in_an_answer() -> None:
    config = topic_pb2.TopicConfig.FromString(UNKNOWN_SETTING)
    with pytest.raises(NotYet) as raised:
        topic_config_from_pb(config)
    assert raised.value.metadata == {"field": "config", "fieldNumber": "15"}
    answer = topic_pb2.Topic(name="t", kind=topic_pb2.TOPIC_KIND_KV, config=config)
    assert topic_info_from_pb(answer).config == TopicConfig()
