"""A fold put to the test, and a lost one settled: what the store answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from eddyline.core.model.read import FoldState

FINDINGS_MAX: Final = 100
"""The contract's: a fold that is wrong everywhere is told as well by its first hundred differences."""


@dataclass(frozen=True, slots=True)
class VerifyProgress:
    """How far it is: the second fold has every record up to `replayed_seq` of `target_seq`."""

    replayed_seq: int
    target_seq: int
    compared_count: int = 0


@dataclass(frozen=True, slots=True)
class FoldVerdict:
    """What was found at `fold_seq`: entries that differ, or that one of the two has not. `base_seq` 0 = no base.

    `findings` tells the first of them, at most `FINDINGS_MAX`, a line each.
    """

    fold_seq: int
    base_seq: int
    entry_count: int
    differing_count: int = 0
    findings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FoldSettled:
    """A fold made of what there is: the base at `base_seq` (0 = none) and the log from `log_first_seq` on.

    Of a damaged base there is what can be read of it; it does not count as one. `settled` False = it was not lost, and is
    as it was.
    """

    settled: bool
    base_seq: int
    log_first_seq: int
    state: FoldState
