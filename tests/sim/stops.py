"""Clean stops whose disk failed."""

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
    """Return whether the disk failed during the stop, after these calls, so that the identity does not have the clean
    stop."""
    erred = any(calls[fault.operation] < fault.call <= disk.calls[fault.operation] for fault in disk.faults)
    identity = read_identity(fs, Layout(settings().directory)) if erred else None
    return identity is not None and not identity.clean
