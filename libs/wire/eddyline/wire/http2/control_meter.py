"""How much work without a message a peer causes: the bound against floods of control frames.

HTTP/2 had an attack of this kind each year since 2019: PING, SETTINGS, PRIORITY, empty DATA (CVE-2019-9512 to 9518), rapid
reset (CVE-2023-44487), CONTINUATION (CVE-2024-27316). All are one rule here: frames that carry nothing are counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from eddyline.wire.http2.errors import ConnectionFailed, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from eddyline.wire.http2.limits import Limits

PAID_FRAMES: Final = 3
"""Frames that a client may send for each request and for each message it gets: WINDOW_UPDATE of the stream and of the
connection, which gRPC's core sends for each stream it opens and each answer, and a PING, by which grpc-go measures the
bandwidth."""


class ControlMeter:
    """Counts control frames of one connection.

    An interval begins with the first frame that finds the last one over. So a peer gets at most twice the limit in any
    `control_interval_s` seconds, and no timer is needed.
    """

    __slots__ = ("_frames_max", "_interval_s", "_now", "_started_s", "frames", "paying", "total", "unanswered")

    def __init__(self, limits: Limits, now: Callable[[], float]) -> None:
        self._frames_max = limits.control_frames_max
        self._interval_s = limits.control_interval_s
        self._now = now
        self._started_s = now()
        self.frames = 0
        self.unanswered = 0
        """PING and WINDOW_UPDATE frames of this interval."""
        self.paying = 0
        """Requests taken and messages sent, each of which pays for `PAID_FRAMES` of them, also in a later interval."""
        self.total = 0

    def charge(self, cost: int = 1) -> None:
        """Count a frame that carries nothing.

        Raises:
            ConnectionFailed: ENHANCE_YOUR_CALM.
        """
        self.total += 1
        self.frames += cost
        if self.frames > self._frames_max:
            self._next_interval()

    def charge_unless_paid(self) -> None:
        """Count a PING or WINDOW_UPDATE, some of which a peer may send for each request and message.

        Raises:
            ConnectionFailed: ENHANCE_YOUR_CALM.
        """
        self.total += 1
        self.unanswered += 1
        if self.unanswered - PAID_FRAMES * self.paying > self._frames_max:
            self._next_interval()

    def _next_interval(self) -> None:
        now = self._now()
        if now - self._started_s < self._interval_s:
            raise ConnectionFailed(ErrorCode.ENHANCE_YOUR_CALM, "too many control frames")
        self._started_s = now
        self.paying = max(self.paying - self.unanswered // PAID_FRAMES, 0)
        self.frames = self.unanswered = 0
