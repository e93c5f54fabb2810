"""Durations, sizes and times as people write them, and as they read them.

24h   90s   1h30m   500ms   0      units: ms s m h d w; a number without one is refused, but for 0
64MiB   10GB   4096                units: B, kB MB GB TB (of 1000), KiB MiB GiB TiB (of 1024); without one: bytes
2026-11-28T09:30:00.25+01:00       RFC 3339, with its offset; or a number since the Unix epoch
"""

from __future__ import annotations

import argparse
import re
from datetime import UTC, datetime
from typing import Final

_UNITS_MS: Final = {"w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_UNITS_BYTES: Final[dict[str, int]] = {"": 1, "b": 1} | {
    f"{letter}{ending}": base**power
    for power, letter in enumerate("kmgt", start=1)
    for ending, base in (("b", 1000), ("ib", 1024))
}
_DURATION: Final = re.compile(r"(?:[0-9]+(?:ms|[smhdw]))+")
_DURATION_PART: Final = re.compile(r"([0-9]+)(ms|[smhdw])")
_SIZE: Final = re.compile(r"([0-9]+)\s*([A-Za-z]*)")
_RFC_3339: Final = re.compile(r"([0-9-]{10}[Tt ][0-9:]{8})(?:\.([0-9]{1,9}))?([Zz]|[+-][0-9]{2}:[0-9]{2})")
NUMBER_MAX: Final = (1 << 63) - 1
"""The largest number that a call carries."""
_NS_PER_MS: Final = 1_000_000


def duration_ms(text: str) -> int:
    """An argument that is a duration, in milliseconds."""
    if text in ("0", "off"):
        return 0
    if not _DURATION.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} {_trouble(text)} a duration: 24h, 90s, 1h30m, 500ms, 7d; 0 = off")
    return _carried(text, sum(int(number) * _UNITS_MS[unit] for number, unit in _DURATION_PART.findall(text)))


def size_bytes(text: str) -> int:
    """An argument that is a size, in bytes."""
    if text == "off":
        return 0
    found = _SIZE.fullmatch(text)
    unit = _UNITS_BYTES.get(found[2].lower()) if found else None
    if found is None or unit is None:
        raise argparse.ArgumentTypeError(f"{text!r} {_trouble(text)} a size: 64MiB, 10GB, 4096; 0 = off")
    return _carried(text, int(found[1]) * unit)


def commit_time_ns(text: str) -> int:
    """An argument that is a commit time: RFC 3339, or milliseconds since the Unix epoch; in nanoseconds."""
    return _time_ns(text, _NS_PER_MS, "milliseconds")


def source_time_ns(text: str) -> int:
    """An argument that is a source's time: RFC 3339, or nanoseconds since the Unix epoch; in nanoseconds."""
    return _time_ns(text, 1, "nanoseconds")


def format_duration(milliseconds: int) -> str:
    """A duration for people, exact, as `duration_ms` reads it."""
    parts: list[str] = []
    left = milliseconds
    for unit, unit_ms in _UNITS_MS.items():
        if unit != "w" and left >= unit_ms:
            parts.append(f"{left // unit_ms}{unit}")
            left %= unit_ms
    return "".join(parts) or "0"


def format_bytes(size: int) -> str:
    """A size for people, to a tenth of its unit."""
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size >= 1024**power:
            return f"{size / 1024**power:.1f}".removesuffix(".0") + unit
    return f"{size}B"


def pluralize(number: int, what: str) -> str:
    """A number of things for people; `what` is the word for one: "1 key", "2 keys"."""
    if number == 1:
        return f"1 {what}"
    if what.endswith("y") and what[-2] not in "aeiou":
        return f"{number} {what[:-1]}ies"
    return f"{number} {what}es" if what.endswith(("x", "ch")) else f"{number} {what}s"


def _trouble(text: str) -> str:
    return "is below 0, and not" if re.match(r"-\.?[0-9]", text) else "is not"


def _carried(text: str, number: int) -> int:
    if abs(number) > NUMBER_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is too large")
    return number


def _time_ns(text: str, number_ns: int, number_unit: str) -> int:
    if re.fullmatch(r"-?[0-9]+", text):
        return _carried(text, int(text) * number_ns)
    found = _RFC_3339.fullmatch(text)
    try:
        if found is None:
            raise ValueError
        moment = datetime.fromisoformat(found[1].upper() + found[3].upper())
    except ValueError:
        message = f"{text!r} is neither RFC 3339 with an offset (2026-11-28T09:30:00Z) nor {number_unit}"
        raise argparse.ArgumentTypeError(message) from None
    since_epoch = moment - datetime.fromtimestamp(0, UTC)
    fraction = (found[2] or "").ljust(9, "0")
    return (since_epoch.days * 86_400 + since_epoch.seconds) * 1_000_000_000 + int(fraction)
