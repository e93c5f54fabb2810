"""Golden files: bytes that are frozen. A format that changes gets a new file; none is ever written over."""

from __future__ import annotations

from pathlib import Path

_DIRECTORY = Path(__file__).parent.parent / "golden"


def golden(name: str) -> bytes:
    """The bytes of a golden file."""
    return (_DIRECTORY / name).read_bytes()
