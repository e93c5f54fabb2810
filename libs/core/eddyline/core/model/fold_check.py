"""Results of a fold check (VerifyFold) and of the acceptance of a lost fold (SettleFold)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from eddyline.core.model.read import FoldState

FINDINGS_MAX: Final = 100
"""The contract's bound: the first hundred differences describe a broken fold as well as all of them."""


@dataclass(frozen=True, slots=True)
class FoldCheckProgress:
    """Progress of a check: the second fold has every record up to `replayed_seq` of `target_seq`."""

    replayed_seq: int
    target_seq: int
    compared_count: int = 0


@dataclass(frozen=True, slots=True)
class FoldVerdict:
    """Result of a check at `fold_seq`. `base_seq` 0 = no base.

    `differing_count` = entries that differ or exist in one fold only; `findings` describes the first of them, at most
    `FINDINGS_MAX`, a line each.
    """

    fold_seq: int
    base_seq: int
    entry_count: int
    differing_count: int = 0
    findings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FoldSettled:
    """A fold rebuilt from the base at `base_seq` (0 = none) and the log from `log_first_seq` on.

    Entries that can be read from a damaged base are used, but it does not count as a base. `settled` False = the fold
    was not lost and is unchanged.
    """

    settled: bool
    base_seq: int
    log_first_seq: int
    state: FoldState
