"""Instance fence: stops the writes of a store once a later start has taken its data directory.

The directory's lock keeps a second store out, except on a volume that two nodes have mounted at once, because one of them
was given up as lost. Then the later start counts, since it wrote the identity last: the earlier one reads the identity
before it writes, and never writes again once it differs.
I1: nothing is written later than `CHECK_INTERVAL_S` and one group after another store's start on the directory. It does not
fence a disk: in that time both may write. If nodes can be lost without being switched off, only a volume that one node at a
time can mount keeps data whole.
Threading: the WAL writers' threads.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from eddyline.core.errors import EddylineError
from eddyline.store.storage.identity import read_identity
from eddyline.store.storage.wal.wal import WalFailed

if TYPE_CHECKING:
    from eddyline.core.runtime.clock import Clock
    from eddyline.core.runtime.fs import Fs
    from eddyline.store.storage.layout import Layout

CHECK_INTERVAL_S: Final = 0.05
"""A check takes 20 us and releases the interpreter's lock three times; twenty a second cost nothing next to appends."""


class Superseded(WalFailed):
    """A later store has the directory: this one writes no more.

    Operator action: stop this store; find out which process or pod has the volume."""

    reason = "SUPERSEDED"


class InstanceFence:
    """Checks whether a later start has written the identity."""

    def __init__(self, fs: Fs, layout: Layout, clock: Clock, instance: int) -> None:
        self._fs = fs
        self._layout = layout
        self._clock = clock
        self._instance = instance
        self._checked_s = clock.monotonic_s()

    def check(self) -> None:
        """Check, if the last check is older than `CHECK_INTERVAL_S`. An unreadable identity is ignored: the following write
        fails then.

        Raises:
            Superseded.
        """
        now_s = self._clock.monotonic_s()
        if now_s - self._checked_s < CHECK_INTERVAL_S:
            return
        self._checked_s = now_s
        self.check_now()

    def check_now(self) -> None:
        """Check now. Raises: Superseded."""
        identity = None
        with suppress(OSError, EddylineError):
            identity = read_identity(self._fs, self._layout)
        if identity is not None and identity.instance > self._instance:
            raise Superseded(
                f"start {identity.instance} of another process owns {self._layout.data_dir}; this is start {self._instance}"
            )
