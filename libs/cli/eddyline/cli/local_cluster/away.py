"""Which role did not answer, and why: the error of a call without an answer gets the role's name, its address and a cause.

The cause is a key of the error's metadata for which `errors.py` has advice. gRPC's own text names an address at best, and
none after a deadline. So the command requests the status of all roles once more, concurrently, within the client's
`STATUS_TIMEOUT_S`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from eddyline.cli.access import tls_cause
from eddyline.cli.local_cluster.find import ADDRESS_VARIABLE
from eddyline.core.advice import NOT_GRPC
from eddyline.core.errors import NotReady

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eddyline.client.admin.status import RoleStatus
    from eddyline.client.connect import Client
    from eddyline.client.transport.topology import Topology
    from eddyline.core.auth.caller_channel import CallerAccess
    from eddyline.core.errors import Deadline, EddylineError

UNRESOLVED: Final = "unresolvedName"
_NO_SUCH_NAME: Final = ("errors resolving", "DNS resolution failed", "address lookup failed")
"""gRPC's texts for a name that its resolvers, c-ares and the system's, do not find."""
_LAST_ERROR: Final = re.compile(r".*last error: \w+: (?:ipv[46]:\S+: )?(.+)", re.DOTALL)


def unreachable_error(address: str, origin: str, error: NotReady, access: CallerAccess) -> NotReady:
    """The error of a cluster no role of which answers. `origin` = --cluster, the variable, or a folder of `eddyline up`."""
    cause = tls_cause(error.message, access)
    if not error.unanswered:
        return error
    is_given = origin in ("--cluster", ADDRESS_VARIABLE)
    if is_unresolved(error.message):
        return NotReady(f"{address} does not resolve here ({origin} names it)", **_causes(cause or "nameGiven"))
    if NOT_GRPC in error.message:
        return NotReady(f"the port {address}, which {origin} names, {NOT_GRPC}", notGrpc=1)
    where = f"{address}, which {origin} names" if is_given else f"{address}, where the cluster of {origin} was"
    said = f"no role answers at {where}: {plain_text(error.message)}"
    return NotReady(said, **_causes(cause or ("addressGiven" if is_given else "folderGiven")))


def with_store_name(
    error: NotReady | Deadline, topic: str, stores: Sequence[str], access: CallerAccess
) -> NotReady | Deadline:
    """The error with the store that a topic lives on, where that did not answer, or is one of several."""
    if not stores or "shardIndex" in error.metadata or (len(stores) < 2 and not error.unanswered):
        return error
    from eddyline.core.model.sharding import shard_of

    shard = shard_of(topic, len(stores))
    said = _said("store" if len(stores) < 2 else f"store/{shard}", stores[shard], error.message)
    more: dict[str, str | int] = {**error.metadata}
    if error.unanswered:
        more |= _causes(_cause(error.message, access))
    if len(stores) > 1:
        more["shardIndex"] = shard
    return type(error)(said, **more)


async def with_role_names(error: NotReady | Deadline, client: Client, access: CallerAccess) -> NotReady | Deadline:
    """The error of a call that nobody answered, with the roles that are away; as it was where all answer now."""
    if not error.unanswered:
        return error
    away = [status for status in await client.statuses() if not status.reachable]
    away = [status for status in away if _names(error.message, status.address)] or away
    if not away:
        return error
    stores = client.topology.stores
    said = "; ".join(_said(role_name(status, stores), status.address, status.reason) for status in away)
    return type(error)(said, **_causes(_cause(away[0].reason, access)))


def describe_error(error: EddylineError, topology: Topology) -> str:
    """The error's message, with the role whose address gRPC's words have."""
    roles = {"store": topology.stores, "ingest": topology.ingests, "delivery": topology.deliveries}
    for role, addresses in roles.items():
        for address in addresses:
            if error.unanswered and _names(error.message, address):
                return _said(role, address, error.message)
    return error.message


def role_name(status: RoleStatus, stores: Sequence[str]) -> str:
    """A role's name, of several stores with its shard."""
    numbered = status.role == "store" and len(stores) > 1 and status.address in stores
    return f"store/{stores.index(status.address)}" if numbered else status.role


def plain_text(message: str) -> str:
    """Of gRPC's words for a connection that failed the last, which are the system's."""
    found = _LAST_ERROR.fullmatch(message)
    return found[1] if found else message


def is_unresolved(message: str) -> bool:
    """True = gRPC's words for a name that does not resolve."""
    return any(words in message for words in _NO_SUCH_NAME)


def _said(name: str, address: str, message: str) -> str:
    if is_unresolved(message):
        return f"the cluster's address of {name}, {address}, does not resolve here"
    return f"{name} at {address}: {plain_text(message).removeprefix('NOT_READY: ')}"


def _cause(message: str, access: CallerAccess) -> str:
    if NOT_GRPC in message:
        return "notGrpc"
    return UNRESOLVED if is_unresolved(message) else tls_cause(message, access) or "roleAway"


def _causes(cause: str) -> dict[str, str | int]:
    return {cause: 1}


def _names(message: str, address: str) -> bool:
    """Whether words have an address, and not as a part of a longer one."""
    return re.search(rf"(?<![\w.-]){re.escape(address)}(?![0-9])", message) is not None
