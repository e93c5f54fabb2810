"""A subscriber as anybody could write it: current values, then every change, across restarts, by one watch."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from eddyline.client.watch.events import CaughtUp, Lost, Records, SnapshotBegan, SnapshotEnded
from eddyline.core.records.record import Op

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from eddyline.client.connect import Client
    from eddyline.core.records.record import Record

SAMPLE: Final = 8


class Change(NamedTuple):
    """One change as it came."""

    topic: str
    record: Record


class DemoSubscriber:
    """Keeps the live values of its topics, and the newest changes."""

    def __init__(self, topics: Sequence[str]) -> None:
        self.live: dict[str, dict[bytes, Record]] = {topic: {} for topic in topics}
        self.newest: deque[Change] = deque(maxlen=SAMPLE)
        self.change_count = 0
        self.gap_count = 0
        self.resume_count = 0
        self.seen_seq: dict[str, int] = {}
        """Per topic, everything up to it is in `live`."""

    async def run(self, client: Client, caught_up: asyncio.Event) -> None:
        """Watch until cancelled; `caught_up` is set when level for the first time."""
        async with client.watch(list(self.live), start="snapshot") as events:
            async for event in events:
                self.resume_count = events.resume_count
                match event:
                    case SnapshotEnded():
                        self.seen_seq[event.topic] = event.position.seq
                    case SnapshotBegan():
                        self.live[event.topic].clear()
                    case Records():
                        self._take(event)
                    case Lost():
                        self.gap_count += 1
                        self.seen_seq[event.topic] = event.position.seq
                    case CaughtUp():
                        caught_up.set()
                    case _:
                        pass

    def _take(self, event: Records) -> None:
        live = self.live[event.topic]
        for record in event.records:
            assert record.key is not None
            if record.op == Op.PUT:
                live[record.key] = record
            else:
                live.pop(record.key, None)
            if not event.in_snapshot:
                self.change_count += 1
                self.newest.append(Change(event.topic, record))
        if not event.in_snapshot:
            self.seen_seq[event.topic] = event.position.seq
