"""Reading many keys of a fold at one point, in the memory of one answer.

One job on the fold's thread reads all keys, so that no write comes in between; it reads them in small chunks, each key once,
and stops as soon as the answer would be larger than a message, or when nobody waits for it any more.
Threading: made and given up on the event loop, `run` on the fold's thread; the flag between them is one attribute.
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
"""Keys read at a time. What is held beside the answer is 32 MiB of the largest values that clients write, 256 MiB of the
largest that a source brings; fewer would make the call itself a part of the cost that shows."""
ENTRY_OVERHEAD_BYTES: Final = 64
"""What a row's tags, lengths and fixed fields take beside its cells in a message, at most."""
ANSWER_BYTES_MAX: Final = MESSAGE_BYTES_MAX - (64 << 10)
"""A message, less what is around the entries."""


class PointReadResult(NamedTuple):
    """Entries in the order asked (None = not live), and the seq up to which the fold was applied."""

    entries: tuple[Record | None, ...]
    fold_seq: int


class PointRead:
    """One read; see the module."""

    def __init__(self, fold: Fold, topic_id: int, keys: Sequence[bytes]) -> None:
        self._fold = fold
        self._topic_id = topic_id
        self._keys = keys
        self._given_up = False

    def give_up(self) -> None:
        """Nobody waits any more: stop at the next chunk."""
        self._given_up = True

    def run(self) -> PointReadResult:
        """Read. After `give_up` the entries are as far as they were read.

        Raises:
            InvalidArgument: the answer would be larger than a message. DataCorrupt, FoldFailed.
        """
        times_asked = Counter(self._keys)
        keys, answer_bytes = list(times_asked), 0
        found: dict[bytes, Record] = {}
        for start in range(0, len(keys), CHUNK_KEYS):
            if self._given_up:
                break
            chunk = keys[start : start + CHUNK_KEYS]
            for key, entry in zip(chunk, self._fold.get(self._topic_id, chunk), strict=True):
                if entry is None:
                    continue
                answer_bytes += entry_bytes(entry) * times_asked[key]
                if answer_bytes > ANSWER_BYTES_MAX:
                    raise InvalidArgument(
                        f"the entries of these keys take more than {ANSWER_BYTES_MAX} bytes, which is what one answer "
                        "carries: ask for fewer keys",
                        field="keys",
                        answerBytesMax=ANSWER_BYTES_MAX,
                    )
                found[key] = entry
        return PointReadResult(tuple(map(found.get, self._keys)), self._fold.applied(self._topic_id))


def check_keys(keys: Sequence[bytes]) -> None:
    """Raises InvalidArgument where there are too few or too many keys, or one is too long."""
    if not 1 <= len(keys) <= KEYS_MAX:
        raise InvalidArgument(
            f"a call names 1 to {KEYS_MAX} keys, not {len(keys)}", field="keys", keys=len(keys), keysMax=KEYS_MAX
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
    """What an entry takes in an answer, at most."""
    if entry.tag is None and entry.node is None and not entry.meta:
        return len(entry.key or b"") + len(entry.data or b"") + ENTRY_OVERHEAD_BYTES
    meta = sum(len(item.name.encode()) + len(item.value) + ENTRY_OVERHEAD_BYTES for item in entry.meta)
    text = len((entry.tag or "").encode()) + len((entry.node or "").encode())
    return len(entry.key or b"") + len(entry.data or b"") + text + meta + ENTRY_OVERHEAD_BYTES
