"""The state of a cluster at one moment, and the faults in it, for `eddyline status`.

*Invariant:* the exit code is 1 exactly where `troubles` finds something, and text and JSON say all of it.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from eddyline.cli.commands.sources.source_page import STANDING, age_text
from eddyline.cli.local_cluster.away import plain_text, role_name
from eddyline.cli.terminal.units import pluralize
from eddyline.core.errors import EddylineError, NotReady, PermissionDenied, StoreUnreachable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eddyline.client.admin.sources import Source
    from eddyline.client.admin.status import RoleStatus
    from eddyline.client.connect import Client

SOURCES_S: Final = 10.0
"""Time for the list of sources, which tries on while no role gives it."""
RECOVERING_MS_MAX: Final = 60_000
"""A source that tries again for longer than this does not get on: NATS elects a leader within 12 s."""
_AWAY: Final = re.compile(r"([A-Z_]+) \(shard ([0-9]+)\)")
"""A reason of ingest or delivery that is one store's, of several."""
STARTING: Final = ("NOT_READY", "DRAINING")
"""Reasons of a role that starts or ends, which is no other trouble of it."""


@dataclass(frozen=True, slots=True)
class ClusterState:
    """A cluster at one moment. `sources` None = not known, and `sources_reason` says why; `sources_forbidden` = the key may
    not ask for them. `warnings` = what a sources file names and the store does not have."""

    roles: tuple[RoleStatus, ...]
    sources: tuple[Source, ...] | None = ()
    sources_reason: str = ""
    warnings: tuple[str, ...] = ()
    sources_forbidden: bool = False

    @property
    def stores(self) -> list[str]:
        return [role.address for role in self.roles if role.role == "store"]


async def cluster_state(client: Client) -> ClusterState:
    """Ask every role, and one of them for the sources."""
    roles = await client.statuses()
    ingests = [role for role in roles if role.role == "ingest"]
    stores = [role for role in roles if role.role == "store"]
    if not any(role.reachable for role in ingests) and not all(role.ready for role in stores):
        return ClusterState(roles, None, "neither an ingest nor all stores answer")
    try:
        async with asyncio.timeout(SOURCES_S):
            sources, warnings = await client.sources.listing()
    except TimeoutError:
        return ClusterState(roles, None, f"no answer within {SOURCES_S:g} s")
    except PermissionDenied as error:
        return ClusterState(roles, None, f"{error.reason}: {error.message}", sources_forbidden=True)
    except EddylineError as error:
        return ClusterState(roles, None, f"{error.reason}: {error.message}")
    return ClusterState(roles, sources, "", warnings)


def troubles(facts: ClusterState) -> list[str]:
    """The faults, a line each; empty = none."""
    found = [line for role in facts.roles for line in _role_troubles(role, facts.stores)]
    if facts.sources is None and not facts.sources_forbidden:
        found.append(f"the sources are not known: {facts.sources_reason}")
    found += [line for source in facts.sources or () for line in source_troubles(source)]
    return [*found, *facts.warnings]


def source_troubles(source: Source) -> Iterator[str]:
    """The faults of one source: stopped, no ingest, or drift from its bucket or its file."""
    name, detail = f"source {source.definition.name}", source.detail
    why = f": {source.reason}" if source.reason else ""
    if source.status in STANDING or source.paused:
        yield f"{name} is {'PAUSED' if source.paused else source.status}{why}"
    elif not source.holder:
        yield f"{name} is not copied by any ingest"
    elif source.status == "RECOVERING" and detail.state_ms > RECOVERING_MS_MAX:
        yield f"{name} is RECOVERING for {age_text(detail.state_ms)}{why}"
    if detail.drift_count:
        yield f"{name} drifts: {pluralize(detail.drift_count, 'key')} differed {age_text(max(detail.verified_ms, 0))} ago"
    if detail.file_drift:
        yield f"{name} drifts from its file: {detail.file_drift}"


def role_state(role: RoleStatus, store_count: int) -> str:
    """A role's state in a word: ready, serves (some stores), read-only, recovering, not ready, away."""
    if role.ready:
        return "ready"
    if not role.reachable:
        return "away"
    if role.role != "store":
        return "serves" if stores_away(role, store_count) else "not ready"
    if "total_bytes" in dict(role.figures):
        return "recovering"
    return "not ready" if role.reason in ("", *STARTING) else "read-only"


def stores_away(role: RoleStatus, store_count: int) -> str:
    """The stores that ingest or delivery does not reach while it serves what lives on others, in words; empty = none."""
    away = _AWAY.findall(role.reason)
    if not role.reachable or _AWAY.sub("", role.reason).strip() or not 0 < len(away) < store_count:
        return ""
    return ", ".join(f"store/{shard} {'away' if why == StoreUnreachable.reason else why}" for why, shard in away)


def reason_text(role: RoleStatus, store_count: int) -> str:
    """Why a role is not ready, in words; empty = it is, or it does not say."""
    return stores_away(role, store_count) or plain_text(role.reason.removeprefix(f"{NotReady.reason}: "))


def _role_troubles(role: RoleStatus, stores: list[str]) -> Iterator[str]:
    name = f"{role_name(role, stores)} at {role.address}"
    if not role.ready:
        reason = reason_text(role, len(stores))
        state = role_state(role, len(stores))
        yield f"{name} {'serves' if state == 'serves' else f'is {state}'}{f': {reason}' if reason else ''}"
    lost = int(dict(role.figures).get("lost_fold_count", 0))
    if lost:
        yield f"{name} has lost {pluralize(lost, 'fold')}: their topics answer FOLD_LOST"
