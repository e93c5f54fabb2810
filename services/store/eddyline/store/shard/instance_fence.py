"""Whether this process is still the one whose directory it is.

The lock keeps a second store out wherever it holds. A volume that two nodes have at once, because one of them was given up
as lost, may hold it apart: then the later start is the one that counts, since it wrote the identity last. The one before it
looks there before it writes, and never writes again.
I1: nothing is written more than `LOOK_EVERY_S` and one group after another store has started on the directory.
What this does not do: fence a disk. In that time both may write; where nodes are lost without being switched off, a volume
that only one of them can have is what keeps data whole.
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

LOOK_EVERY_S: Final = 0.05
"""A look takes 20 us and gives the interpreter away three times; twenty a second are nothing beside appends."""


class Superseded(WalFailed):
    """A later store has the directory: this one writes no more.

    Operator action: stop this one; see which process or pod has the volume.
    """

    reason = "SUPERSEDED"


class InstanceFence:
    """Looks whether a later start has written the identity."""

    def __init__(self, fs: Fs, layout: Layout, clock: Clock, instance: int) -> None:
        self._fs = fs
        self._layout = layout
        self._clock = clock
        self._instance = instance
        self._look_s = clock.monotonic_s()

    def check(self) -> None:
        """Look, if the last look is a while ago. What cannot be read says nothing: what is written then says it.

        Raises:
            Superseded.
        """
        now_s = self._clock.monotonic_s()
        if now_s - self._look_s < LOOK_EVERY_S:
            return
        self._look_s = now_s
        self.look()

    def look(self) -> None:
        """Look now. Raises: Superseded."""
        found = None
        with suppress(OSError, EddylineError):
            found = read_identity(self._fs, self._layout)
        if found is not None and found.instance > self._instance:
            raise Superseded(
                f"start {found.instance} of another process has {self._layout.data_dir}; this one is {self._instance}"
            )
