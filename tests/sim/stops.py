"""Whether a store that stopped had a disk to say so on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eddyline.store.storage.identity import read_identity
from eddyline.store.storage.layout import Layout
from tests.support.store.simulated import settings

if TYPE_CHECKING:
    from collections import Counter

    from eddyline.core.runtime.fs import Fs
    from tests.support.sim.faulty_fs import FaultyFs


def stop_is_untold(fs: Fs, disk: FaultyFs, calls: Counter[str]) -> bool:
    """Whether the disk erred since these calls, in the stop, so that the identity does not say how it ended."""
    erred = any(calls[fault.operation] < fault.call <= disk.calls[fault.operation] for fault in disk.faults)
    identity = read_identity(fs, Layout(settings().directory)) if erred else None
    return identity is not None and not identity.clean
