"""Eddyline's Python client (asyncio), and all that a program needs of it by one import:

    from eddyline.client import connect, Kind, Op, Record

`connect` makes a client, events are what a watch yields, `errors` has the classes of errors, `__version__` is the
package's. Each name is loaded at its first use: importing this package loads nothing.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from eddyline.client.append.append_run import NumberedRecord
    from eddyline.client.connect import Client, connect
    from eddyline.client.local_fold.local_fold import open_fold, read_fold
    from eddyline.client.transport.access import access_of_environment, client_access
    from eddyline.client.watch.applied import WatchBatch, watch_applied
    from eddyline.client.watch.cursor_file import CursorFile
    from eddyline.client.watch.events import (
        CaughtUp,
        Lost,
        Position,
        Records,
        SnapshotBegan,
        SnapshotEnded,
        SnapshotResumed,
        TopicGone,
    )
    from eddyline.client.watch.plan import AtRevision, AtTime, WatchTopic
    from eddyline.core import errors
    from eddyline.core.errors import EddylineError
    from eddyline.core.model.read import RecordFilter
    from eddyline.core.model.topic import ConfigChange, Discard, Durability, Kind, TopicConfig, TopicInfo
    from eddyline.core.records.record import Gap, GapReason, MetaEntry, Op, Record
    from eddyline.core.store_link.protocol import AppendResult

    __version__: str

__all__ = [
    "AppendResult",
    "AtRevision",
    "AtTime",
    "CaughtUp",
    "Client",
    "ConfigChange",
    "CursorFile",
    "Discard",
    "Durability",
    "EddylineError",
    "Gap",
    "GapReason",
    "Kind",
    "Lost",
    "MetaEntry",
    "NumberedRecord",
    "Op",
    "Position",
    "Record",
    "RecordFilter",
    "Records",
    "SnapshotBegan",
    "SnapshotEnded",
    "SnapshotResumed",
    "TopicConfig",
    "TopicGone",
    "TopicInfo",
    "WatchBatch",
    "WatchTopic",
    "__version__",
    "access_of_environment",
    "client_access",
    "connect",
    "errors",
    "open_fold",
    "read_fold",
    "watch_applied",
]

_PLACES: Final = {
    "eddyline.client.transport.access": (
        "access_of_environment",
        "client_access",
    ),
    "eddyline.client.append.append_run": ("NumberedRecord",),
    "eddyline.client.watch.applied": (
        "WatchBatch",
        "watch_applied",
    ),
    "eddyline.client.connect": (
        "Client",
        "connect",
    ),
    "eddyline.client.watch.cursor_file": ("CursorFile",),
    "eddyline.client.watch.events": (
        "CaughtUp",
        "Lost",
        "Position",
        "Records",
        "SnapshotBegan",
        "SnapshotEnded",
        "SnapshotResumed",
        "TopicGone",
    ),
    "eddyline.client.local_fold.local_fold": (
        "open_fold",
        "read_fold",
    ),
    "eddyline.client.watch.plan": (
        "AtRevision",
        "AtTime",
        "WatchTopic",
    ),
    "eddyline.core.errors": ("EddylineError",),
    "eddyline.core.model.read": ("RecordFilter",),
    "eddyline.core.records.record": (
        "Gap",
        "GapReason",
        "MetaEntry",
        "Op",
        "Record",
    ),
    "eddyline.core.store_link.protocol": ("AppendResult",),
    "eddyline.core.model.topic": (
        "ConfigChange",
        "Discard",
        "Durability",
        "Kind",
        "TopicConfig",
        "TopicInfo",
    ),
}
_MODULE_OF: Final = {name: module for module, names in _PLACES.items() for name in names}


def __getattr__(name: str) -> object:
    if name == "errors":
        found: object = import_module("eddyline.core.errors")
    elif name == "__version__":
        # Not with the rest: most programs never ask, and it looks through what is installed.
        found = import_module("importlib.metadata").version("eddyline-client")
    elif name in _MODULE_OF:
        found = getattr(import_module(_MODULE_OF[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__


class _Package(ModuleType):
    """The package. Its `connect` is the function: an import of the module of that name would put the module here."""

    @property
    def connect(self) -> object:
        return import_module("eddyline.client.connect").connect

    @connect.setter
    def connect(self, module: ModuleType) -> None:
        """Ignore the module that the import system sets here."""


sys.modules[__name__].__class__ = _Package
