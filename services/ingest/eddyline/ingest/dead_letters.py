"""Dead letters: messages that no record can hold, kept in a topic of their own with the reason.

A letter is a record of the dead-letter topic, which is a LOG: key = the message's subject, data = as much of its data as a
record holds, meta = why and where from, the hash of all of it, and its size. In the source's own topic a gap says that the
revision is missing; a fold keeps what the key had before.
I1: a letter is stored before the source's position passes its message. Its idempotency key is the message's place: who meets
the message again within a day (`LETTERS_CONFIG`), after a crash or in a resync, stores no second one.
Threading: event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xxhash import xxh3_128_hexdigest

from eddyline.core.backoff import Backoff
from eddyline.core.batch import Batch
from eddyline.core.clock import sleep
from eddyline.core.errors import EddylineError, TopicNotFound
from eddyline.core.record import KEY_BYTES_MAX, MetaEntry, Op, Record
from eddyline.core.topic import Kind
from eddyline.ingest.creation import LETTERS_CONFIG, ensure_topic
from eddyline.ingest.forward import retried
from eddyline.ingest.judge import SourceStopped

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from eddyline.core.clock import Clock
    from eddyline.core.source import SourceDefinition
    from eddyline.core.store_link import StoreLink
    from eddyline.ingest.batch import Misfit
    from eddyline.ingest.progress import SourceCounts
    from eddyline.ingest.stream import Stream

DATA_BYTES_MAX: Final = 1_000_000
"""Of a letter: a record's bound, less room for what is said of it."""
HEADERS_BYTES_MAX: Final = 8 << 10
"""Of the message's header block, as it came: half of what meta may have."""

ANOTHER: Final = "make room there, or name another topic (`eddyline source update NAME --dead-letter-topic TOPIC`)"


class DeadLetters:
    """The letters of one source, by `definition` as it is now. `on_trouble` hears why it waits, and "" when it goes on."""

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

    async def keep(self, stream: Stream, misfits: Sequence[Misfit]) -> None:
        """Store a letter for each; asked again without end where the store is away or busy.

        Raises:
            SourceStopped: OVERSIZE: no retry helps, since the topic is of another kind or is written by a source.
        """
        for misfit in misfits:
            await self._append(self._letter(stream, misfit), f"{stream.created_ns:x}:{misfit.revision}")
            self._counts.dead_letters += 1

    def _letter(self, stream: Stream, misfit: Misfit) -> Record:
        whole = misfit.headers + misfit.data
        said = {
            "reason": misfit.reason,
            "source": self.definition.name,
            "stream": stream.name,
            "revision": str(misfit.revision),
            "data_bytes": str(len(misfit.data)),
            "headers_bytes": str(len(misfit.headers)),
            "xxh3_128": xxh3_128_hexdigest(whole),
        }
        meta = [MetaEntry(name, text.encode()) for name, text in said.items()]
        if misfit.headers:
            meta.append(MetaEntry("headers", misfit.headers[:HEADERS_BYTES_MAX]))
        return Record(
            op=Op.APPEND,
            key=misfit.subject[:KEY_BYTES_MAX],
            data=misfit.data[:DATA_BYTES_MAX],
            meta=tuple(meta),
            source_ts_ns=misfit.time_ns,
        )

    async def _is_made(self) -> bool:
        """Make the topic again, which somebody deleted; False = it cannot be."""
        try:
            await ensure_topic(self._link, self.definition.dead_letter_topic, Kind.LOG, LETTERS_CONFIG)
        except EddylineError:
            return False
        return True

    async def _append(self, letter: Record, place: str) -> None:
        key = f"{xxh3_128_hexdigest(self.definition.name.encode())}:{place}"
        while True:
            try:
                await self._link.append(
                    self.definition.dead_letter_topic, Batch.from_rows([letter]), idempotency_key=key
                )
                break
            except EddylineError as error:
                is_made_again = isinstance(error, TopicNotFound) and await self._is_made()
                if not is_made_again and not retried(error):
                    raise SourceStopped("OVERSIZE", f"dead letters: {error.message}; {ANOTHER}") from error
                self._on_trouble(f"dead letters: {error.message}")
                wait_s = self._backoff.next_s(at_least_s=int(error.metadata.get("retryAfterMs", "0")) / 1000)
            await sleep(self._clock, wait_s)
        if self._backoff.failures:
            self._backoff.reset()
            self._on_trouble("")
