"""Multi-key reads of a fold in one snapshot, within the memory of one answer.

One job on the fold's thread reads all keys, so that no write comes in between; it reads them in small chunks, each key once,
and stops as soon as the answer would exceed a message, or the caller is cancelled.
Threading: made and cancelled on the event loop, `run` on the fold's thread; the flag between them is one attribute.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from eddyline.core.errors import InvalidArgument
from eddyline.core.records.record import KEY_BYTES_MAX, MESSAGE_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eddyline.core.records.record import Record
    from eddyline.store.fold.fold import Fold

KEYS_MAX: Final = 10_000
CHUNK_KEYS: Final = 32
"""Keys read at a time. Apart from the answer, memory holds 32 MiB of the largest values that clients write, 256 MiB of the
largest that a source brings; with fewer keys the cost of the call itself would be noticeable."""
ENTRY_OVERHEAD_BYTES: Final = 64
"""Upper bound of a row's tags, lengths and fixed fields in a message, without its cells."""
ANSWER_BYTES_MAX: Final = MESSAGE_BYTES_MAX - (64 << 10)
"""A message, less its fields other than the entries."""


class PointReadResult(NamedTuple):
    """Entries in the order of the keys (None = not live), and the seq up to which the fold was applied."""

    entries: tuple[Record | None, ...]
    fold_seq: int


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
        times_requested = Counter(self._keys)
        keys, answer_bytes = list(times_requested), 0
        entries: dict[bytes, Record] = {}
        for start in range(0, len(keys), CHUNK_KEYS):
            if self._cancelled:
                break
            chunk = keys[start : start + CHUNK_KEYS]
            for key, entry in zip(chunk, self._fold.get(self._topic_id, chunk), strict=True):
                if entry is None:
                    continue
                answer_bytes += entry_bytes(entry) * times_requested[key]
                if answer_bytes > ANSWER_BYTES_MAX:
                    raise InvalidArgument(
                        f"the entries of these keys take more than {ANSWER_BYTES_MAX} bytes, the maximum of "
                        "an answer: read fewer keys",
                        field="keys",
                        answerBytesMax=ANSWER_BYTES_MAX,
                    )
                entries[key] = entry
        return PointReadResult(tuple(map(entries.get, self._keys)), self._fold.applied(self._topic_id))


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


def entry_bytes(entry: Record) -> int:
    """Return an upper bound of an entry's bytes in an answer."""
    if entry.tag is None and entry.node is None and not entry.meta:
        return len(entry.key or b"") + len(entry.data or b"") + ENTRY_OVERHEAD_BYTES
    meta = sum(len(item.name.encode()) + len(item.value) + ENTRY_OVERHEAD_BYTES for item in entry.meta)
    text = len((entry.tag or "").encode()) + len((entry.node or "").encode())
    return len(entry.key or b"") + len(entry.data or b"") + text + meta + ENTRY_OVERHEAD_BYTES
