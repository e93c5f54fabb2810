"""A refusal has the figures of its text in its metadata too, so that no client parses text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from eddyline.core.errors import EddylineError
from eddyline.core.model.source import SourceDefinition, SourceReport
from eddyline.store.log.append import WriterPosition
from tests.support.store.simulated import append, kv_topic, log_topic, puts, rows, sim_store

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from eddyline.store.shard.shard import Shard

SOURCE = SourceDefinition("s", "copy", "b")

CALLS: dict[str, Callable[[Shard], Awaitable[object]]] = {
    "EPOCH_MISMATCH": lambda link: append(link, "log", rows("x"), epoch=77),
    "HEAD_MISMATCH": lambda link: append(link, "log", rows("x"), expected_head_seq=77),
    "VERSION_MISMATCH": lambda link: append(link, "kv", puts(("k", "x")), expected_versions=((b"k", b"\x77"),)),
    "STALE_FENCE": lambda link: append(link, "log", rows("x"), writer=WriterPosition("w", 3, b"1", b"2")),
    "STALE_FENCE of a lease": lambda link: link.renew_lease("s", fence=77, report=SourceReport()),
    "SOURCE_EXISTS": lambda link: link.put_source(SourceDefinition("s", "kv", "c99")),
    "CURSOR_AHEAD": lambda link: link.read_records("log", after_seq=77),
    "INVALID_ARGUMENT limit": lambda link: link.read_records("log", after_seq=0, limit=10_777),
    "INVALID_ARGUMENT max_bytes": lambda link: link.read_records("log", after_seq=0, max_bytes=1 << 30),
    "INVALID_ARGUMENT wait_ms": lambda link: link.read_records("log", after_seq=0, wait_ms=77_777),
    "INVALID_ARGUMENT keys": lambda link: link.batch_get_entries("kv", [b"k"] * 10_777),
    "INVALID_ARGUMENT key": lambda link: link.batch_get_entries("kv", [bytes(1_077)]),
    "INVALID_ARGUMENT lease": lambda link: link.acquire_lease("s", holder="h", lease_ms=1),
}


@pytest.mark.parametrize("case", CALLS)
async def test_every_number_in_a_refusals_words_is_in_its_metadata(case: str) -> None:
    async with sim_store() as link:
        await log_topic(link)
        await kv_topic(link)
        await kv_topic(link, "copy")
        await link.put_source(SOURCE)
        await link.acquire_lease("s", holder="h", lease_ms=0)
        await append(link, "log", rows("a"), writer=WriterPosition("w", 5, b"", b"1"))
        await append(link, "kv", puts(("k", "v")))
        with pytest.raises(EddylineError) as refused:
            await CALLS[case](link)
        error = refused.value
        assert error.reason == case.split(maxsplit=1)[0]
        told = " ".join(error.metadata.values())
        fixed = {"0", "1"}  # a bound's lower end
        assert set(re.findall(r"\d+", error.message)) - fixed <= set(re.findall(r"\d+", told))
        assert all(re.fullmatch(r"[a-z][A-Za-z]*", key) for key in error.metadata)


async def test_failed_conditions_name_the_expected_state() -> None:
    async with sim_store() as link:
        await log_topic(link)
        await append(link, "log", rows("a"), writer=WriterPosition("w", 5, b"", b"1"))
        for case, key, value in (
            ("HEAD_MISMATCH", "expectedHeadSeq", "77"),
            ("EPOCH_MISMATCH", "expectedEpoch", "77"),
            ("STALE_FENCE", "carriedFence", "3"),
            ("CURSOR_AHEAD", "afterSeq", "77"),
        ):
            with pytest.raises(EddylineError) as refused:
                await CALLS[case](link)
            assert refused.value.metadata[key] == value
