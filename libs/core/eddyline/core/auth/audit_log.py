"""The audit log: one line of the role's log for each administrative call and each call that deletes, whatever became of it.

`audit` with the fields method, principal (`-` where nobody need say who he is), via (the role that spoke for it), peer,
names (topics, sources, buckets, at most `NAMES_MAX`), outcome (OK, the reason of the refusal, CANCELLED or INTERNAL).
Keys, values and secrets are in none. It is written at INFO whatever the role's log level is.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from eddyline.core.runtime.logging import fields

if TYPE_CHECKING:
    from collections.abc import Iterable

    from eddyline.core.auth.grant import Grant

OUTCOME_OK: Final = "OK"
OUTCOME_CANCELLED: Final = "CANCELLED"
OUTCOME_INTERNAL: Final = "INTERNAL"
NAMES_MAX: Final = 8
NAME_CHARS_MAX: Final = 255

LOGGER: Final = logging.getLogger("eddyline.audit")
LOGGER.setLevel(logging.INFO)


def audit(method: str, grant: Grant, *, peer: str, names: Iterable[str], outcome: str) -> None:
    """Write one line."""
    told = [name[:NAME_CHARS_MAX] for name, _ in zip(dict.fromkeys(names), range(NAMES_MAX), strict=False)]
    LOGGER.info(
        "audit",
        extra=fields(
            method=method.rpartition("eddyline.v1.")[2],
            principal=grant.name or "-",
            via=grant.via or "-",
            peer=peer,
            names=",".join(told),
            outcome=outcome,
        ),
    )
