"""`StoreDoor`: all that the store's own RPCs ask of a shard. `StoreLink`, and the calls that only its server makes.

`eddyline.store.link.LocalLink` implements it; `rpc` sees nothing else of the engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from eddyline.core.store_link import StoreLink

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncGenerator

    from eddyline.core.read import RangePage
    from eddyline.core.source import SourceInfo
    from eddyline.core.store_link import AppendResult
    from eddyline.core.topic import Kind, TopicInfo
    from eddyline.store.append import AppendRequest, StoreFigures


class StoreDoor(StoreLink, Protocol):
    """One shard in process. All calls on its event loop."""

    def kind_of(self, name: str) -> Kind | None:
        """A topic's kind, None where there is none: what an append's default op depends on. One look-up, no waiting."""

    async def wait_seq(self, topic: str, seq: int, *, wait_s: float) -> int:
        """Wait until `seq` is applied and visible, at most `wait_s`; the head then, below `seq` where time was up.

        Raises:
            InvalidName, TopicNotFound: there is none, or it was deleted meanwhile.
        """

    async def list_topics(self, name_prefix: str, after_name: str, limit: int) -> list[TopicInfo]:
        """Up to `limit` topics in byte order of their names, above `after_name`."""

    async def delete_topic(self, name: str, *, if_epoch: int = 0, if_empty: bool = False) -> int:
        """Delete a topic with all it has; its epoch.

        Raises:
            TopicNotFound, EpochMismatch, TopicNotEmpty, ReadOnly.
        """

    def range_entries(
        self, topic: str, *, key_prefix: bytes = b"", after_key: bytes = b"", limit: int = 0, min_seq: int = 0
    ) -> AsyncGenerator[RangePage, None]:
        """As in `StoreLink`; whoever breaks off closes it, so that its view pins no files."""

    async def list_sources_page(self, after: str, limit: int) -> list[SourceInfo]:
        """Up to `limit` sources in byte order of their names, above `after`."""

    async def stage(self, request: AppendRequest) -> asyncio.Future[AppendResult]:
        """Stage an append; returns when it has its place in the topic's order. The future is its acknowledgement, and
        is never cancelled by who waits for it: an append that has its place is carried out.

        Raises:
            what the contract lists for AppendRecords, before a seq was assigned; nothing was staged then.
        """

    def status(self) -> StoreFigures:
        """The shard's own figures."""
