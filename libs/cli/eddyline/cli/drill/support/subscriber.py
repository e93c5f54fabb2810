"""A subscriber that remembers all it saw, for the checks: one watch over its topics, across every restart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eddyline.client.watch.events import CaughtUp, Lost, Records, SnapshotBegan, SnapshotEnded, TopicGone
from eddyline.core.errors import EddylineError
from eddyline.core.records.record import Op

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from eddyline.client.connect import Client
    from eddyline.client.watch.plan import StartPoint
    from eddyline.core.records.record import Gap, Record


class RecordingSubscriber:
    """The records and gaps that one watch delivered. `items`: per topic, records and gaps behind the start, in the order
    they came."""

    def __init__(self, name: str, topics: Sequence[str], start: StartPoint) -> None:
        self.name = name
        self.start = start
        self.items: dict[str, list[Record | Gap]] = {topic: [] for topic in topics}
        self.live: dict[str, dict[bytes, bytes]] = {topic: {} for topic in topics}
        """Live values by key: the snapshot with every change applied."""
        self.snapshot_seq: dict[str, int] = {}
        self.seen_seq: dict[str, int] = dict.fromkeys(topics, 0)
        self.resume_count = 0
        self.failure: EddylineError | None = None

    async def run(self, client: Client, level: asyncio.Event) -> None:
        """Watch until cancelled; `level` is set when it has caught up first. A final error is kept, not raised."""
        try:
            async with client.watch(list(self.items), start=self.start) as events:
                async for event in events:
                    self.resume_count = events.resume_count
                    match event:
                        case Records():
                            self._take(event)
                        case Lost():
                            self.items[event.topic].append(event.gap)
                            self.seen_seq[event.topic] = event.position.seq
                        case SnapshotBegan():
                            self.live[event.topic].clear()
                        case SnapshotEnded():
                            self.snapshot_seq[event.topic] = event.fold_seq
                            self.seen_seq[event.topic] = event.position.seq
                        case CaughtUp():
                            level.set()
                        case TopicGone():
                            pass
        except EddylineError as error:
            self.failure = error
            level.set()

    def _take(self, event: Records) -> None:
        live = self.live[event.topic]
        for record in event.records:
            if record.key is not None:
                if record.op == Op.PUT:
                    live[record.key] = record.data or b""
                else:
                    live.pop(record.key, None)
        if not event.in_snapshot:
            self.items[event.topic].extend(event.records)
            self.seen_seq[event.topic] = event.position.seq
