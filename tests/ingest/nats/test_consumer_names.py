"""Names of consumers."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from eddyline.core.model.topic import Kind, TopicConfig, TopicInfo, check_name
from eddyline.ingest.nats.consumer_names import consumer_name, fence_in, name_prefix

TOPIC = TopicInfo("t", 1, Kind.KV, TopicConfig(), 0, 1, "", 1_700_000_000_000)


@given(
    st.text(min_size=1, max_size=300),
    st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}", fullmatch=True),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**31),
)
def test_a_name_is_valid_for_jetstream_and_contains_its_fence(
    cluster: str, source: str, fence: int, attempt: int
) -> None:
    check_name(source, "source")
    prefix = name_prefix(cluster, source, TOPIC)
    name = consumer_name(prefix, fence, attempt)
    assert len(name) <= 255
    assert name.isascii()
    assert not set(name) & set(" .*>/\\\t\r\n")
    assert fence_in(prefix, name) == fence


def test_sources_with_equal_readable_names_have_different_prefixes() -> None:
    assert name_prefix("c", "a.b", TOPIC) != name_prefix("c", "a:b", TOPIC)
    assert name_prefix("c-a", "b", TOPIC) != name_prefix("c", "a-b", TOPIC)
    prefix = name_prefix("c", "a", TOPIC)
    assert fence_in(prefix, consumer_name(name_prefix("c", "b", TOPIC), 1, 1)) is None
    assert fence_in(prefix, prefix + "else") is None


def test_clusters_that_go_by_one_id_differ() -> None:
    other = replace(TOPIC, create_ts_ms=TOPIC.create_ts_ms + 1)
    assert name_prefix("local", "a", TOPIC) != name_prefix("local", "a", other)
    assert name_prefix("local", "a", TOPIC) != name_prefix("local", "a", replace(TOPIC, epoch=2))
