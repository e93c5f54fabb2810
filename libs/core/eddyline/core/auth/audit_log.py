"""The audit log: one line in the role's log for each administrative call and each call that deletes, whatever its outcome.

The event is `audit`, with the fields method, principal (`-` without access control), via (the role that called for the
principal), peer, names (topics, sources, buckets, at most `NAMES_MAX`), outcome (OK, the reason of the refusal, CANCELLED or
INTERNAL). No line has keys of records, values or secrets. It is written at INFO whatever the role's log level is.
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


def write_audit_line(method: str, grant: Grant, *, peer: str, names: Iterable[str], outcome: str) -> None:
    """Write one line to the audit log, with at most `NAMES_MAX` names."""
    shortened = [name[:NAME_CHARS_MAX] for name, _ in zip(dict.fromkeys(names), range(NAMES_MAX), strict=False)]
    LOGGER.info(
        "audit",
        extra=fields(
            method=method.rpartition("eddyline.v1.")[2],
            principal=grant.name or "-",
            via=grant.via or "-",
            peer=peer,
            names=",".join(shortened),
            outcome=outcome,
        ),
    )
