"""Client channels: one way to open them, with options that fit those of `eddyline.core.server.server`.

Rejected: gRPC's defaults. They let a stream's window grow to what the link carries, however little of it is read; a
server accepts a ping without data only every 5 minutes and answers an earlier one with `too_many_pings`, which closes the
connection; a client waits up to 120 s before it connects again to a restarted peer; and `http_proxy` applies even to
loopback.
"""

from __future__ import annotations

from typing import Final

import grpc

from eddyline.core.records.record import MESSAGE_BYTES_MAX

KEEPALIVE_MS: Final = 10_000
"""gRPC: never, so a peer that vanished (power failure, dropped flow) goes unnoticed, and its resources stay allocated. 10
s is far below the 60 s after which common load balancers drop an idle flow. Costs one ping of 17 bytes a connection each
10 s."""
KEEPALIVE_TIMEOUT_MS: Final = 10_000
"""gRPC: 20 s. Its own threads answer pings, whatever the event loop does, so a process that does not answer for 10 s is
considered gone. With `KEEPALIVE_MS` the connection of a peer that hangs or vanished is closed within 20 s. gRPC 1.85 never
arms the timer of `keepalive_timeout_ms` for a peer whose kernel still accepts bytes; the ping's own timeout, by default a
minute, ends that connection, so both are set."""
RECONNECT_MS_MIN: Final = 100
RECONNECT_MS_MAX: Final = 1_000
"""gRPC: 1 s to 120 s, so after a restart clients would stay disconnected for up to two minutes. Costs one SYN a second."""
CONNECT_MS_MAX: Final = 2_000
"""gRPC: 20 s. Bound of one attempt to connect before the next: far above any round trip."""
RESOLVE_MS_MIN: Final = 5_000
"""gRPC: 30 s, after which a peer at a new address of its name is found. Costs a DNS query each 5 s while no peer answers."""
WINDOW_BYTES: Final = 512 << 10
"""gRPC: 64 KiB, which grow with what the link carries (BDP probes) even while no one reads: a stream that was not read took
4 MB, or all of a fold of 60 MB. Fixed, it takes 0.4 MB. 512 KiB carry as much over loopback as the growing window
did, 780 MB/s in messages of 64 KiB and 1 490 MB/s in such of 1 MiB; 256 KiB carry 480 of the former. The cost: at a
round trip of 10 ms a stream carries 50 MB/s."""
FRAME_BYTES: Final = 128 << 10
"""gRPC: 16 KiB, so a batch of 100 KB is seven frames. TLS pays for each: with one frame the store's processor time of
such an append fell by 4 to 10 % over TLS, and not at all without. Larger frames gained no more. The cost: a small call on
a connection that batches of 1 MB keep full waits 6 to 7.7 ms at the median, 5 to 7 with small frames; with batches of 100
KB it waits no longer."""

CHANNEL_OPTIONS: Final[tuple[tuple[str, int], ...]] = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", RECONNECT_MS_MIN),
    ("grpc.min_reconnect_backoff_ms", CONNECT_MS_MAX),
    ("grpc.max_reconnect_backoff_ms", RECONNECT_MS_MAX),
    ("grpc.dns_min_time_between_resolutions_ms", RESOLVE_MS_MIN),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
    ("grpc.http2.max_frame_size", FRAME_BYTES),
    # Retries are ours (idempotency keys and positions); gRPC's would keep a copy of every message for them.
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.service_config_disable_resolution", 1),
)


def open_channel(
    address: str, *, own_connection: bool = False, credentials: grpc.ChannelCredentials | None = None
) -> grpc.aio.Channel:
    """Open a channel to `host:port`, which connects at the first call. The caller closes it. `credentials` None = no TLS.

    With `own_connection` it shares no connection with other channels of this process to the same address, so that a
    bulk stream does not delay small calls.
    """
    options = list(CHANNEL_OPTIONS)
    if own_connection:
        options.append(("grpc.use_local_subchannel_pool", 1))
    if credentials is not None:
        return grpc.aio.secure_channel(address, credentials, options=options)
    return grpc.aio.insecure_channel(address, options=options)
