"""A small writer: keeps changing keys of a bucket, as real life does with the data it stands for.

Each step changes one key drawn at random: its value with a note, its own value again, or gone and back. The next load
repairs an unfinished one: it puts every key whose value differs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from eddyline.cli.terminal.output import format_time
from eddyline.core.errors import NatsUnreachable
from eddyline.core.runtime.clock import wait_event

if TYPE_CHECKING:
    import asyncio
    import random
    from collections.abc import Mapping

    from eddyline.cli.nats.bucket import Bucket
    from eddyline.core.runtime.clock import Clock

STEP_S: Final = 0.05
RETRY_S: Final = 0.5


class Changes:
    """The writer of one bucket."""

    def __init__(
        self, bucket: Bucket, values: Mapping[str, bytes], *, clock: Clock, random_source: random.Random
    ) -> None:
        self._bucket = bucket
        self._values = values
        self._keys = sorted(values)
        self._clock = clock
        self._random = random_source
        self.count = 0
        """Changes acknowledged so far."""

    async def run(self, stop: asyncio.Event) -> None:
        """Change keys until `stop` is set."""
        deleted = ""
        while not await wait_event(self._clock, stop, STEP_S):
            try:
                deleted = await self._step(deleted)
                self.count += 1
            except NatsUnreachable:
                # A demo goes on: what was not acknowledged is some other change.
                await wait_event(self._clock, stop, RETRY_S)

    async def _step(self, deleted: str) -> str:
        if deleted:
            await self._bucket.put(deleted, self._values[deleted])
            return ""
        key = self._random.choice(self._keys)
        if self._random.random() < 0.1:
            await self._bucket.delete(key)
            return key
        note = f"  // looked at {format_time(self._clock.now_ms())}".encode() if self._random.random() < 0.5 else b""
        await self._bucket.put(key, self._values[key] + note)
        return ""
