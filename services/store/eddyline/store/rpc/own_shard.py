"""The shard behind the doorway, as the gate that forwards calls sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eddyline.core.errors import SourceNotFound

if TYPE_CHECKING:
    from eddyline.store.rpc.shard_handle import Doorway


class OwnShard:
    """Its index, and which sources it has."""

    def __init__(self, doorway: Doorway, index: int) -> None:
        self._doorway = doorway
        self.index = index

    async def has_source(self, name: str) -> bool:
        """True = it keeps a source of this name.

        Raises:
            NotReady: not known yet, or any more. InvalidName.
        """
        try:
            await self._doorway.enter().get_source(name)
        except SourceNotFound:
            return False
        return True
