"""Ingest's settings: the environment names `EDDYLINE_INGEST_…`, each with its reason.

Bounds of queues that protect the process rather than fit it to a machine are constants of the modules that own them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from eddyline.core.model.source import LEASE_MS_DEFAULT, LEASE_MS_MAX, LEASE_MS_MIN
from eddyline.core.runtime.settings import SettingsError, check_address, check_range

PREFIX: Final = "EDDYLINE_INGEST_"

LISTEN: Final = "127.0.0.1:7702"
"""Any address but loopback needs keys or clients' certificates. Port 0 = a free one, which is printed when ingest serves."""
NATS_URL: Final = "nats://127.0.0.1:4222"
"""NATS's own default. Several servers of one cluster are separated by commas."""
INBOX_PREFIX: Final = "_INBOX"
"""NATS's own default. Every user may subscribe below it unless its permissions say otherwise."""
INBOX_CHARS_MAX: Final = 100
HOLDER_BYTES_MAX: Final = 255
HEARTBEAT_MS: Final = 1_000
"""Default in nats.go: 5 s, in other clients up to 30 s. Two missed = the consumer is recreated, so a change is at most three
of them late if a consumer dies without notice. Costs a small message a source each interval."""
HEARTBEAT_MS_MIN: Final = 100
HEARTBEAT_MS_MAX: Final = 15_000
"""Half of a pull's lifetime: the server refuses more."""
VERIFY_INTERVAL_MS: Final = 86_400_000
"""Other mirrors never verify: drift stays until somebody looks for it. Costs a reading of bucket and fold a source and day:
20 s for a million keys."""
VERIFY_INTERVAL_MS_MIN: Final = 1_000
VERIFY_INTERVAL_MS_MAX: Final = 31 * 86_400_000
STOP_GRACE_MS: Final = 5_000
STOP_GRACE_MS_MAX: Final = 600_000

_INBOX: Final = re.compile(r"[^\s.*>]+(?:\.[^\s.*>]+)*")
_DOMAIN: Final = re.compile(r"[A-Za-z0-9_-]*")


@dataclass(frozen=True, slots=True)
class IngestSettings:
    """Settings of an ingest replica. `metrics_listen` and `sources_file` empty = none; `holder` empty = host name and port;
    `verify_interval_ms` 0 = never.

    Settings of NATS are checked by their reader: `eddyline.ingest.nats.login`.
    """

    listen: str = LISTEN
    metrics_listen: str = ""
    nats_url: str = field(default=NATS_URL, repr=False)
    nats_domain: str = ""
    nats_creds: str = field(default="", repr=False)
    nats_creds_file: str = ""
    nats_nkey_file: str = ""
    nats_inbox_prefix: str = INBOX_PREFIX
    nats_tls_ca: str = ""
    nats_tls_cert: str = ""
    nats_tls_key: str = ""
    nats_tls_first: bool = False
    sources_file: str = ""
    holder: str = ""
    lease_ms: int = LEASE_MS_DEFAULT
    heartbeat_ms: int = HEARTBEAT_MS
    verify_interval_ms: int = VERIFY_INTERVAL_MS
    verify_repair: bool = False
    stop_grace_ms: int = STOP_GRACE_MS

    def __post_init__(self) -> None:
        check_address(f"{PREFIX}LISTEN", self.listen)
        if self.metrics_listen:
            check_address(f"{PREFIX}METRICS_LISTEN", self.metrics_listen)
        if not self.nats_url:
            raise SettingsError(f"{PREFIX}NATS_URL is empty")
        if not _DOMAIN.fullmatch(self.nats_domain):
            raise SettingsError(f"{PREFIX}NATS_DOMAIN is {self.nats_domain!r}, not a JetStream domain")
        if len(self.nats_inbox_prefix) > INBOX_CHARS_MAX or not _INBOX.fullmatch(self.nats_inbox_prefix):
            raise SettingsError(
                f"{PREFIX}NATS_INBOX_PREFIX is {self.nats_inbox_prefix[:INBOX_CHARS_MAX]!r}, not a subject of at most "
                f"{INBOX_CHARS_MAX} characters without wildcards: _INBOX_me if ingest may subscribe to _INBOX_me.>"
            )
        if len(self.holder.encode()) > HOLDER_BYTES_MAX:
            raise SettingsError(f"{PREFIX}HOLDER has more than {HOLDER_BYTES_MAX} bytes")
        check_range(f"{PREFIX}LEASE_MS", self.lease_ms, LEASE_MS_MIN, LEASE_MS_MAX)
        check_range(f"{PREFIX}HEARTBEAT_MS", self.heartbeat_ms, HEARTBEAT_MS_MIN, HEARTBEAT_MS_MAX)
        if self.verify_interval_ms:
            name = f"{PREFIX}VERIFY_INTERVAL_MS"
            check_range(name, self.verify_interval_ms, VERIFY_INTERVAL_MS_MIN, VERIFY_INTERVAL_MS_MAX)
        check_range(f"{PREFIX}STOP_GRACE_MS", self.stop_grace_ms, 0, STOP_GRACE_MS_MAX)

    def holder_on(self, host_name: str) -> str:
        """Name under which leases are acquired: the same after a restart, so that the replica acquires its own leases at
        once."""
        return self.holder or f"{host_name}:{self.listen.rpartition(':')[2]}"[-HOLDER_BYTES_MAX:]
