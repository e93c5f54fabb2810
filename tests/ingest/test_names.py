"""Names of consumers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from eddyline.core.topic import check_name
from eddyline.ingest.names import consumer_name, fence_in, name_prefix


@given(
    st.text(min_size=1, max_size=300),
    st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}", fullmatch=True),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**31),
)
def test_a_name_is_one_that_jetstream_takes_and_tells_its_fence(
    cluster: str, source: str, fence: int, attempt: int
) -> None:
    check_name(source, "source")
    prefix = name_prefix(cluster, source)
    name = consumer_name(prefix, fence, attempt)
    assert len(name) <= 255
    assert name.isascii()
    assert not set(name) & set(" .*>/\\\t\r\n")
    assert fence_in(prefix, name) == fence


def test_sources_whose_shown_names_are_equal_differ() -> None:
    assert name_prefix("c", "a.b") != name_prefix("c", "a:b")
    assert name_prefix("c-a", "b") != name_prefix("c", "a-b")
    prefix = name_prefix("c", "a")
    assert fence_in(prefix, consumer_name(name_prefix("c", "b"), 1, 1)) is None
    assert fence_in(prefix, prefix + "else") is None
