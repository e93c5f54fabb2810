"""State of delivery's scan slots, which only tests need to see."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eddyline.delivery.fetch.scan_slots import ScanSlots


def held_count(slots: ScanSlots) -> int:
    """Return the number of held slots."""
    return len(slots._held)


def waiting_count(slots: ScanSlots) -> int:
    """Return the number of waiting requests."""
    return len(slots._waiting)
