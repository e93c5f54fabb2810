"""Topic configurations: bounds, contradictions, and updates."""

from __future__ import annotations

import pytest

from eddyline.core.errors import InvalidConfig
from eddyline.core.model.topic import (
    CAP_MAX,
    TTL_MS_MAX,
    ConfigChange,
    Discard,
    Durability,
    Kind,
    TopicConfig,
    check_config,
    merged,
)

FULL = TopicConfig(Durability.FSYNC, 5, 1_000, 10, 640, Discard.REJECT, 7, False)


def refused(config: TopicConfig, kind: Kind = Kind.LOG, source: str = "") -> InvalidConfig:
    with pytest.raises(InvalidConfig) as raised:
        check_config(config, kind, source)
    return raised.value


@pytest.mark.parametrize(
    "config",
    [
        TopicConfig(),
        FULL,
        TopicConfig(idempotency_window_ms=1, ttl_ms=1, cap_records=1, cap_bytes=32, priority=-1_000),
        TopicConfig(ttl_ms=TTL_MS_MAX, cap_records=CAP_MAX, cap_bytes=CAP_MAX, priority=1_000),
        TopicConfig(cap_bytes=32, discard=Discard.REJECT),
        TopicConfig(Durability.EPHEMERAL, ttl_ms=5),
    ],
)
def test_a_config_within_its_bounds_is_accepted(config: TopicConfig) -> None:
    check_config(config, Kind.LOG)


@pytest.mark.parametrize(
    ("config", "field"),
    [
        (TopicConfig(idempotency_window_ms=0), "idempotency_window_ms"),
        (TopicConfig(idempotency_window_ms=86_400_001), "idempotency_window_ms"),
        (TopicConfig(ttl_ms=-1), "ttl_ms"),
        (TopicConfig(ttl_ms=TTL_MS_MAX + 1), "ttl_ms"),
        (TopicConfig(cap_records=-1), "cap_records"),
        (TopicConfig(cap_records=CAP_MAX + 1), "cap_records"),
        (TopicConfig(cap_bytes=-1), "cap_bytes"),
        (TopicConfig(cap_bytes=31), "cap_bytes"),
        (TopicConfig(cap_bytes=CAP_MAX + 1), "cap_bytes"),
        (TopicConfig(priority=1_001), "priority"),
        (TopicConfig(priority=-1_001), "priority"),
    ],
)
def test_a_setting_out_of_its_bounds_is_refused_by_name(config: TopicConfig, field: str) -> None:
    error = refused(config)
    assert error.metadata["field"] == f"config.{field}"
    assert field in error.message


def test_a_refusal_of_contradictions_names_both_fields() -> None:
    message = refused(TopicConfig(discard=Discard.REJECT, ttl_ms=5)).message
    assert "discard" in message
    assert "cap_records" in message
    message = refused(TopicConfig(Durability.EPHEMERAL), Kind.KV).message
    assert "durability" in message
    assert "kind" in message
    message = refused(TopicConfig(Durability.EPHEMERAL), Kind.LOG, "certs").message
    assert "durability" in message
    assert "source" in message


def test_an_update_keeps_the_settings_it_leaves_out() -> None:
    assert merged(FULL, ConfigChange(), Kind.LOG) == FULL
    after = merged(FULL, ConfigChange(ttl_ms=0, cap_bytes=0, dedupe_node=True), Kind.LOG)
    assert after == TopicConfig(Durability.FSYNC, 5, 0, 10, 0, Discard.REJECT, 7, True)
    assert merged(FULL, ConfigChange(clear_priority=True), Kind.LOG).priority is None
    assert merged(TopicConfig(), ConfigChange(Durability.FSYNC), Kind.KV).durability is Durability.FSYNC


@pytest.mark.parametrize(
    ("config", "change"),
    [
        (FULL, ConfigChange(cap_records=0, cap_bytes=0)),
        (FULL, ConfigChange(priority=1, clear_priority=True)),
        (FULL, ConfigChange(ttl_ms=-1)),
        (FULL, ConfigChange(Durability.EPHEMERAL)),
        (TopicConfig(Durability.EPHEMERAL), ConfigChange(Durability.DISK)),
    ],
)
def test_an_update_to_an_invalid_config_is_refused(config: TopicConfig, change: ConfigChange) -> None:
    with pytest.raises(InvalidConfig):
        merged(config, change, Kind.LOG)
