"""The parts of a client that rooms below it need: opening watches, and reaching each delivery address."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import grpc

    from eddyline.client.transport.topology import Topology
    from eddyline.client.watch.plan import WatchTopic
    from eddyline.client.watch.watch import Watch
    from eddyline.core.errors import EddylineError


class WatchSource(Protocol):
    """Opens watches, as `Client.watch` does."""

    def watch(
        self,
        topics: str | WatchTopic | Sequence[str | WatchTopic],
        *,
        on_retry: Callable[[EddylineError], None] | None = None,
        on_resume: Callable[[], None] | None = None,
    ) -> Watch:
        """Watch topics across restarts. See `Client.watch`."""
        ...


class DeliveryChannels(Protocol):
    """Knows the cluster's addresses and has a channel to each."""

    @property
    def topology(self) -> Topology:
        """The addresses of all roles."""
        ...

    def channel_to(self, address: str) -> grpc.aio.Channel:
        """The channel to one address, kept open for later calls."""
        ...
