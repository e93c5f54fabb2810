"""Governor: measures the pressure on a delivery process and decides the countermeasures.

Pure: no loop, no clock of its own. `in_flight.py` and `watch/subscriber.py` bound slow subscribers.
Each `SAMPLE_S` the caller passes three values, each mapped to 0 to 1: topics waiting for their turn, the wait of those
that had one, and bytes being sent to subscribers. The pressure is the largest of them.

Above 0.2 a topic is served once per window, which grows with the pressure, and the records gathered meanwhile are sent
as one frame. After 5 samples above 0.8 B0 has an eighth of its weight, until the pressure is below 0.6.
I1: up to 0.2 the process behaves as without a governor. I2: countermeasures cost latency, at most 20 ms a frame, and
    reorder topics among each other; never a record, nor the order within a topic.
Threading: none of its own; one caller.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

SAMPLE_S: Final = 0.1
READY_A_WORKER: Final = 8
"""This many waiting topics per worker are full pressure."""
LATENCY_FULL_S: Final = 0.005
LATENCY_WEIGHT: Final = 0.2
"""Weight of the newest sample in the moving average: a step is followed to nine tenths in a second."""
COALESCE_ABOVE: Final = 0.2
WINDOW_S_MAX: Final = 0.020
SLOW_ABOVE: Final = 0.8
SLOW_SAMPLES: Final = 5
SLOW_UNTIL_BELOW: Final = 0.6

assert COALESCE_ABOVE < SLOW_UNTIL_BELOW < SLOW_ABOVE, "each step of the ladder is above the one before"


class LadderStep(Enum):
    """Countermeasures, the mildest first."""

    REST = 0
    COALESCE = 1
    SLOW_B0 = 2


class PressurePart(Enum):
    """The measurements that make up the pressure."""

    READY = "ready topics"
    LATENCY = "scheduling latency"
    SEND_BYTES = "queued send bytes"


@dataclass(frozen=True, slots=True)
class PressureReading:
    """Result of the last sample. Parts and pressure are 0 to 1; `since_s` is the start of `step`."""

    ready: float = 0.0
    latency: float = 0.0
    send_bytes: float = 0.0
    step: LadderStep = LadderStep.REST
    since_s: float = 0.0
    reason: str = ""
    window_s: float = 0.0
    slows_b0: bool = False

    @property
    def pressure(self) -> float:
        """The largest part."""
        return max(self.ready, self.latency, self.send_bytes)

    @property
    def part(self) -> PressurePart:
        """The part that determines the pressure; of equal ones the first."""
        return max((PressurePart.READY, PressurePart.LATENCY, PressurePart.SEND_BYTES), key=self._of)

    def _of(self, part: PressurePart) -> float:
        return {
            PressurePart.READY: self.ready,
            PressurePart.LATENCY: self.latency,
            PressurePart.SEND_BYTES: self.send_bytes,
        }[part]


class Governor:
    """Turns samples into pressure readings."""

    def __init__(self, *, workers: int, send_bytes_max: int) -> None:
        self._ready_full = READY_A_WORKER * workers
        self._send_bytes_max = max(1, send_bytes_max)
        self._latency_s = 0.0
        self._above = 0
        self.reading = PressureReading()

    @property
    def latency_s(self) -> float:
        """Moving average of the scheduling latency, in seconds."""
        return self._latency_s

    def sample(self, now_s: float, *, ready: int, latency_s: float, queued_bytes: int) -> PressureReading:
        """Process one sample: number of waiting topics, wait of those served since the last sample, bytes being sent."""
        self._latency_s += LATENCY_WEIGHT * (latency_s - self._latency_s)
        previous = self.reading
        measured = PressureReading(
            ready=_share(ready, self._ready_full),
            latency=_share(self._latency_s, LATENCY_FULL_S),
            send_bytes=_share(queued_bytes, self._send_bytes_max),
        )
        pressure = measured.pressure
        self._above = self._above + 1 if pressure > SLOW_ABOVE else 0
        slows_b0 = pressure >= SLOW_UNTIL_BELOW if previous.slows_b0 else self._above >= SLOW_SAMPLES
        milder = LadderStep.COALESCE if pressure > COALESCE_ABOVE else LadderStep.REST
        step = LadderStep.SLOW_B0 if slows_b0 else milder
        changed = step is not previous.step
        self.reading = PressureReading(
            ready=measured.ready,
            latency=measured.latency,
            send_bytes=measured.send_bytes,
            step=step,
            since_s=now_s if changed else previous.since_s,
            reason=_reason(previous.step, step, measured) if changed else previous.reason,
            window_s=window_s(pressure),
            slows_b0=slows_b0,
        )
        return self.reading


def window_s(pressure: float) -> float:
    """Return the seconds between two frames of a topic: 0 up to a pressure of 0.2, then linear to 20 ms at 1."""
    return WINDOW_S_MAX * max(0.0, pressure - COALESCE_ABOVE) / (1.0 - COALESCE_ABOVE)


def _share(value: float, full: float) -> float:
    return min(1.0, max(0.0, value / full))


def _reason(previous: LadderStep, step: LadderStep, measured: PressureReading) -> str:
    """Return the reason for the change of step as text."""
    measurement = f"{measured.part.value} at {measured.pressure:.2f}"
    match step:
        case LadderStep.SLOW_B0:
            return f"{measurement}: above {SLOW_ABOVE} for {SLOW_SAMPLES} samples"
        case LadderStep.COALESCE if previous is LadderStep.SLOW_B0:
            return f"{measurement}: below {SLOW_UNTIL_BELOW} again"
        case LadderStep.COALESCE:
            return f"{measurement}: above {COALESCE_ABOVE}"
        case _:
            return f"pressure at {measured.pressure:.2f}: {COALESCE_ABOVE} or less"
