"""Multi-key reads of a fold in one snapshot, within the memory of one answer.

One job on the fold's thread reads all keys, so that no write comes in between; it reads them in small chunks, each key once,
and stops as soon as the answer would exceed a message, or the caller is cancelled. A few keys whose entries are in memory
are read on the event loop instead (`read_cached`), while the fold's thread has nothing to do. Entries stay as they are
stored (`fold_entry.py`): an answer is made of their bytes.
Threading: made and cancelled on the event loop, `run` on the fold's thread; the flag between them is one attribute.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from eddyline.core.errors import InvalidArgument
from eddyline.core.records.fold_entry import META_LEN_AT, SHAPE, VERSION_BYTES
from eddyline.core.records.record import KEY_BYTES_MAX, MESSAGE_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eddyline.core.model.read import FoldState
    from eddyline.store.fold.fold import Fold

KEYS_MAX: Final = 10_000
CHUNK_KEYS: Final = 32
"""Keys read at a time. Apart from the answer, memory holds 32 MiB of the largest values that clients write, 256 MiB of the
largest that a source brings; with fewer keys the cost of the call itself would be noticeable."""
ENTRY_OVERHEAD_BYTES: Final = 64
"""Upper bound of a row's tags, lengths and fixed fields in a message, without its cells."""
ANSWER_BYTES_MAX: Final = MESSAGE_BYTES_MAX - (64 << 10)
"""A message, less its fields other than the entries."""
CACHED_KEYS_MAX: Final = 16
"""Keys of one call that are read on the event loop: 3 us each from the block cache, so 50 us at most. The fold's thread
reads a key in 1.3 us, but handing it a job takes 30 to 50 us of processor time (P23): more keys gain nothing."""
CACHED_BYTES_MAX: Final = 256 << 10
"""Bytes of several entries that are read on the event loop: 0.2 ms of copying. A single entry may be larger: 1 ms with a
MiB, the most that clients write, and 8 ms with the largest that a source brings, less than making and sending its answer."""


class PointReadResult(NamedTuple):
    """Stored entries in the order of the keys (None = not live), and the seq up to which the fold was applied."""

    values: tuple[bytes | None, ...]
    fold_seq: int


@dataclass(frozen=True, slots=True)
class StoredPage:
    """Stored entries of `keys` at one point, in their order; None = not live."""

    state: FoldState
    keys: Sequence[bytes]
    values: tuple[bytes | None, ...]


class PointRead:
    """One multi-key read, in one job on the fold's thread."""

    def __init__(self, fold: Fold, topic_id: int, keys: Sequence[bytes]) -> None:
        self._fold = fold
        self._topic_id = topic_id
        self._keys = keys
        self._cancelled = False

    def cancel(self) -> None:
        """Stop `run` at the next chunk."""
        self._cancelled = True

    def run(self) -> PointReadResult:
        """Read all keys; after `cancel` the rest are None.

        Raises:
            InvalidArgument: the answer would be larger than a message. DataCorrupt, FoldFailed.
        """
        keys = list(dict.fromkeys(self._keys))
        times_requested = Counter(self._keys) if len(keys) < len(self._keys) else None
        values: list[bytes | None] = []
        answer_bytes = 0
        for start in range(0, len(keys), CHUNK_KEYS):
            if self._cancelled:
                values += [None] * (len(keys) - start)
                break
            chunk = keys[start : start + CHUNK_KEYS]
            read = self._fold.get_stored(self._topic_id, chunk)
            answer_bytes += _answer_bytes_max(chunk, read, times_requested)
            if answer_bytes > ANSWER_BYTES_MAX:
                raise InvalidArgument(
                    f"the entries of these keys take more than {ANSWER_BYTES_MAX} bytes, the maximum of "
                    "an answer: read fewer keys",
                    field="keys",
                    answerBytesMax=ANSWER_BYTES_MAX,
                )
            values += read
        if times_requested is not None:
            values = list(map(dict(zip(keys, values, strict=True)).__getitem__, self._keys))
        return PointReadResult(tuple(values), self._fold.applied(self._topic_id))


def read_cached(fold: Fold, topic_id: int, keys: Sequence[bytes]) -> PointReadResult | None:
    """Read a few keys from memory on the event loop, while the fold's thread is idle; None = read them on that thread.

    Raises:
        DataCorrupt, FoldFailed.
    """
    if len(keys) > CACHED_KEYS_MAX:
        return None
    values = fold.get_cached(topic_id, keys, CACHED_BYTES_MAX)
    return None if values is None else PointReadResult(tuple(values), fold.applied(topic_id))


def check_keys(keys: Sequence[bytes]) -> None:
    """Raise InvalidArgument if there are too few or too many keys, or one is too long."""
    if not 1 <= len(keys) <= KEYS_MAX:
        raise InvalidArgument(
            f"a call must name 1 to {KEYS_MAX} keys, not {len(keys)}", field="keys", keys=len(keys), keysMax=KEYS_MAX
        )
    longest = max(map(len, keys))
    if longest > KEY_BYTES_MAX:
        raise InvalidArgument(
            f"a key has at most {KEY_BYTES_MAX} bytes, not {longest}",
            field="keys",
            keyBytes=longest,
            keyBytesMax=KEY_BYTES_MAX,
        )


def _answer_bytes_max(
    keys: Sequence[bytes], values: Sequence[bytes | None], times_requested: Counter[bytes] | None
) -> int:
    """Return an upper bound of the bytes of stored entries in an answer; `times_requested` None = each once.

    An entry of meta is stored with 6 bytes beside its name and value, and sent with 14 at most.
    """
    if times_requested is not None:
        pairs = [(key, value) for key, value in zip(keys, values, strict=True) for _ in range(times_requested[key])]
        keys, values = [key for key, _ in pairs], [value for _, value in pairs]
    live = [value for value in values if value is not None]
    others = [value for value in live if value[: SHAPE.size] not in VERSION_BYTES]
    meta_bytes = sum(int.from_bytes(value[META_LEN_AT : META_LEN_AT + 4], "little") for value in others)
    return sum(map(len, keys)) + sum(map(len, live)) + 2 * meta_bytes + ENTRY_OVERHEAD_BYTES * len(live)
