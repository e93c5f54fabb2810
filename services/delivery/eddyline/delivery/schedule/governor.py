"""Governor: how much pressure a delivery process is under, and what it does about it. Pure: no loop, no clock of its own.

Each `SAMPLE_S` it is told three figures, each a part of the pressure from 0 to 1: topics that wait for their turn, how long
those waited that had one, and bytes under way to subscribers. The pressure is the largest of them.

Above 0.2 a topic is served once in a window, which grows with the pressure, and what gathered meanwhile goes as one frame.
After 5 samples above 0.8 B0 has an eighth of its weight, until the pressure is below 0.6.
I1: up to 0.2 nothing is different from a process without governor. I2: it costs latency, at most 20 ms a frame, and moves
topics against each other; never a record, nor order within a topic.
Threading: none of its own; one caller.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

SAMPLE_S: Final = 0.1
READY_A_WORKER: Final = 8
"""So many topics waiting for each that can be served at a time are full pressure."""
LATENCY_FULL_S: Final = 0.005
LATENCY_WEIGHT: Final = 0.2
"""Of the newest sample in the moving average: a step is followed to nine tenths in a second."""
COALESCE_ABOVE: Final = 0.2
WINDOW_S_MAX: Final = 0.020
SLOW_ABOVE: Final = 0.8
SLOW_SAMPLES: Final = 5
SLOW_UNTIL_BELOW: Final = 0.6

assert COALESCE_ABOVE < SLOW_UNTIL_BELOW < SLOW_ABOVE, "each step of the ladder is above the one before"


class LadderStep(Enum):
    """What is being done, the milder first."""

    REST = 0
    COALESCE = 1
    SLOW_B0 = 2


class Part(Enum):
    """The figures that make pressure."""

    READY = "ready topics"
    LATENCY = "scheduling latency"
    SEND_BYTES = "queued send bytes"


@dataclass(frozen=True, slots=True)
class PressureReading:
    """What the last sample said and what follows from it. Parts and pressure are 0 to 1; `since_s` is when `step` began."""

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
    def part(self) -> Part:
        """The part that makes the pressure; of equal ones the first."""
        return max((Part.READY, Part.LATENCY, Part.SEND_BYTES), key=self._of)

    def _of(self, part: Part) -> float:
        return {Part.READY: self.ready, Part.LATENCY: self.latency, Part.SEND_BYTES: self.send_bytes}[part]


class Governor:
    """Sees figures, gives rulings; see the module."""

    def __init__(self, *, workers: int, send_bytes_max: int) -> None:
        self._ready_full = READY_A_WORKER * workers
        self._send_bytes_max = max(1, send_bytes_max)
        self._latency_s = 0.0
        self._above = 0
        self.ruling = PressureReading()

    @property
    def latency_s(self) -> float:
        """Scheduling latency, as a moving average."""
        return self._latency_s

    def sample(self, now_s: float, *, ready: int, latency_s: float, queued_bytes: int) -> PressureReading:
        """Take the figures of now: topics that wait, how long those served since the last sample did, bytes under way."""
        self._latency_s += LATENCY_WEIGHT * (latency_s - self._latency_s)
        before = self.ruling
        found = PressureReading(
            ready=_share(ready, self._ready_full),
            latency=_share(self._latency_s, LATENCY_FULL_S),
            send_bytes=_share(queued_bytes, self._send_bytes_max),
        )
        pressure = found.pressure
        self._above = self._above + 1 if pressure > SLOW_ABOVE else 0
        slows_b0 = pressure >= SLOW_UNTIL_BELOW if before.slows_b0 else self._above >= SLOW_SAMPLES
        milder = LadderStep.COALESCE if pressure > COALESCE_ABOVE else LadderStep.REST
        step = LadderStep.SLOW_B0 if slows_b0 else milder
        changed = step is not before.step
        self.ruling = PressureReading(
            ready=found.ready,
            latency=found.latency,
            send_bytes=found.send_bytes,
            step=step,
            since_s=now_s if changed else before.since_s,
            reason=_reason(before.step, step, found) if changed else before.reason,
            window_s=window_s(pressure),
            slows_b0=slows_b0,
        )
        return self.ruling


def window_s(pressure: float) -> float:
    """How far apart two frames of a topic are, in seconds: 0 up to a pressure of 0.2, then straight to 20 ms at 1."""
    return WINDOW_S_MAX * max(0.0, pressure - COALESCE_ABOVE) / (1.0 - COALESCE_ABOVE)


def _share(value: float, full: float) -> float:
    return min(1.0, max(0.0, value / full))


def _reason(before: LadderStep, step: LadderStep, found: PressureReading) -> str:
    """Why the step is another one than before, in words."""
    said = f"{found.part.value} at {found.pressure:.2f}"
    match step:
        case LadderStep.SLOW_B0:
            return f"{said}: above {SLOW_ABOVE} for {SLOW_SAMPLES} samples"
        case LadderStep.COALESCE if before is LadderStep.SLOW_B0:
            return f"{said}: below {SLOW_UNTIL_BELOW} again"
        case LadderStep.COALESCE:
            return f"{said}: above {COALESCE_ABOVE}"
        case _:
            return f"pressure at {found.pressure:.2f}: {COALESCE_ABOVE} or less"
