"""Dead letters: messages that no record can hold, stored in a topic of their own with the reason.

A letter is a record of the dead-letter topic, which is a LOG: key = the message's subject, data = as much of its data as
a record can hold, meta = reason, origin, hash of the whole message and its size. In the source's own topic a gap covers
the revision; a fold keeps the key's previous value.
I1: a letter is stored before the source's position passes its message. Its idempotency key is the message's place: a
source that meets the message again within a day (`LETTERS_CONFIG`), after a crash or in a resync, stores no second one.

The store deduplicates whole appends by one key: a batch of letters that comes again with other bounds would store some
twice. A writer's position would not do either: a resync meets older messages behind newer ones. So each letter is an
append of its own, and `LETTERS_AT_ONCE` are in flight together, which the store commits as one group, in no order among
themselves.
Memory: those of one chunk.
Threading: event loop.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from xxhash import xxh3_128_hexdigest

from eddyline.core.errors import (
    EddylineError,
    NotKv,
    NotLog,
    TopicExists,
    TopicNotFound,
)
from eddyline.core.model.topic import IDEMPOTENCY_WINDOW_MS_MAX, Kind, TopicConfig
from eddyline.core.records.batch import Batch
from eddyline.core.records.record import KEY_BYTES_MAX, MetaEntry, Op, Record
from eddyline.core.runtime.backoff import Backoff
from eddyline.core.runtime.clock import sleep
from eddyline.ingest.copy.forward import retried
from eddyline.ingest.copy.stopped import SourceStopped

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from eddyline.core.model.source import SourceDefinition
    from eddyline.core.model.topic import TopicInfo
    from eddyline.core.runtime.clock import Clock
    from eddyline.core.store_link.protocol import StoreLink
    from eddyline.ingest.copy.batch import UnfitMessage
    from eddyline.ingest.copy.progress import SourceCounts
    from eddyline.ingest.nats.stream import Stream

DATA_BYTES_MAX: Final = 1_000_000
"""Data of a letter: a record's bound, less room for its meta."""
HEADERS_BYTES_MAX: Final = 8 << 10
"""Bytes of the message's original header block: half of the bound of meta."""

ANOTHER: Final = "make room there, or name another topic (`eddyline source update NAME --dead-letter-topic TOPIC`)"
LETTERS_AT_ONCE: Final = 64
"""Appends in flight: alone each waits for a commit of its own (64 letters of FSYNC: 64 syncs in place of one or two); more
would be a burst on a store that others write too."""


class _Letter(NamedTuple):
    """A letter and its idempotency key."""

    record: Record
    key: str


class DeadLetters:
    """The dead letters of one source. `definition` may change. `on_trouble` gets the reason for waiting, and "" when it
    ends."""

    def __init__(
        self,
        link: StoreLink,
        definition: SourceDefinition,
        *,
        clock: Clock,
        rng: Random,
        on_trouble: Callable[[str], None],
        counts: SourceCounts,
    ) -> None:
        self._link = link
        self.definition = definition
        self._clock = clock
        self._backoff = Backoff(rng)
        self._on_trouble = on_trouble
        self._counts = counts

    async def store(self, stream: Stream, unfit: Sequence[UnfitMessage]) -> None:
        """Store a letter for each message; retries without end while the store is away or busy.

        Raises:
            SourceStopped: OVERSIZE: no retry helps, since the topic is of another kind or is written by a source.
        """
        source = xxh3_128_hexdigest(self.definition.name.encode())
        for start in range(0, len(unfit), LETTERS_AT_ONCE):
            letters = [
                _Letter(self._letter(stream, message), f"{source}:{stream.created_ns:x}:{message.revision}")
                for message in unfit[start : start + LETTERS_AT_ONCE]
            ]
            await self._append_all(letters)

    def _letter(self, stream: Stream, message: UnfitMessage) -> Record:
        whole = message.headers + message.data
        fields = {
            "reason": message.reason,
            "source": self.definition.name,
            "stream": stream.name,
            "revision": str(message.revision),
            "data_bytes": str(len(message.data)),
            "headers_bytes": str(len(message.headers)),
            "xxh3_128": xxh3_128_hexdigest(whole),
        }
        meta = [MetaEntry(name, text.encode()) for name, text in fields.items()]
        if message.headers:
            meta.append(MetaEntry("headers", message.headers[:HEADERS_BYTES_MAX]))
        return Record(
            op=Op.APPEND,
            key=message.subject[:KEY_BYTES_MAX],
            data=message.data[:DATA_BYTES_MAX],
            meta=tuple(meta),
            source_ts_ns=message.time_ns,
        )

    async def _recreate_topic(self) -> bool:
        """Create the topic again after somebody deleted it; False = refused."""
        try:
            await ensure_topic(self._link, self.definition.dead_letter_topic, Kind.LOG, LETTERS_CONFIG)
        except EddylineError:
            return False
        return True

    async def _append_all(self, letters: Sequence[_Letter]) -> None:
        """Append letters concurrently, and retry those that failed until none is left."""
        while True:
            async with asyncio.TaskGroup() as group:
                appends = [group.create_task(self._append(letter)) for letter in letters]
            failed = [(letter, task.result()) for letter, task in zip(letters, appends, strict=True)]
            letters = [letter for letter, error in failed if error is not None]
            errors = [error for _, error in failed if error is not None]
            self._counts.dead_letters += len(appends) - len(errors)
            if not errors:
                break
            is_recreated = any(isinstance(error, TopicNotFound) for error in errors) and await self._recreate_topic()
            for error in errors:
                if not retried(error) and not (is_recreated and isinstance(error, TopicNotFound)):
                    raise SourceStopped("OVERSIZE", f"dead letters: {error.message}; {ANOTHER}") from error
            self._on_trouble(f"dead letters: {errors[0].message}")
            retry_after_s = max(int(error.metadata.get("retryAfterMs", "0")) for error in errors) / 1000
            await sleep(self._clock, self._backoff.next_delay_s(minimum_s=retry_after_s))
        if self._backoff.failures:
            self._backoff.reset()
            self._on_trouble("")

    async def _append(self, letter: _Letter) -> EddylineError | None:
        """Append once; returns the error."""
        try:
            await self._link.append(
                self.definition.dead_letter_topic, Batch.from_rows([letter.record]), idempotency_key=letter.key
            )
        except EddylineError as error:
            return error
        return None


LETTERS_CONFIG: Final = TopicConfig(idempotency_window_ms=IDEMPOTENCY_WINDOW_MS_MAX)
"""Idempotency window of a dead-letter topic; default of a topic: 2 min. A source may be away for longer before it meets a
message again."""


async def ensure_topic(
    link: StoreLink, name: str, kind: Kind, config: TopicConfig, made: list[TopicInfo] | None = None
) -> TopicInfo:
    """Return the topic, created if it is missing; one that is created is added to `made`.

    Raises:
        InvalidName, NotKv, NotLog, QuotaTopics, and errors of a store that cannot answer.
    """
    try:
        info = await link.get_topic(name)
    except TopicNotFound:
        try:
            info = await link.create_topic(name, kind, config)
            if made is not None:
                made.append(info)
        except TopicExists:
            info = await link.get_topic(name)
    check_kind(info, kind)
    return info


def check_kind(info: TopicInfo, kind: Kind) -> None:
    """Raise NotKv or NotLog if a topic is of another kind."""
    if info.kind is not kind and kind is Kind.KV:
        raise NotKv(f"topic {info.name} is a LOG topic; a bucket needs a KV topic", topic=info.name)
    if info.kind is not kind:
        raise NotLog(f"topic {info.name} is a KV topic; a stream and dead letters need a LOG topic", topic=info.name)
