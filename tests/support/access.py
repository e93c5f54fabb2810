"""Keys of a test's own: a keys file, what callers show, and calls of any method by its name."""

from __future__ import annotations

import importlib
import json
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import grpc
from google.protobuf import message_factory

import eddyline.v1.topic_pb2
from eddyline.core.auth.caller_channel import CallerAccess, CallerKey
from eddyline.core.auth.keys_file import digest_of
from eddyline.core.auth.role import RoleAccess
from eddyline.core.runtime.settings import CommonSettings
from eddyline.core.transport.status import unwrap

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from google.protobuf.message import Message

    from eddyline.core.errors import EddylineError

CONTRACT: Final = tuple(
    importlib.import_module(f"eddyline.v1.{path.stem}").DESCRIPTOR
    for path in sorted(Path(eddyline.v1.topic_pb2.__file__).parent.glob("*_pb2.py"))
)
"""Every file of the contract."""


TRIES: Final = 5
"""Of a call whose end was lost."""


class Method(NamedTuple):
    """One call of the contract."""

    path: str
    request: type[Message]


def methods(*services: str) -> dict[str, Method]:
    """Calls of the contract by their full names: of all services, or of these."""
    return {
        (path := f"/{service.full_name}/{method.name}"): Method(
            path, message_factory.GetMessageClass(method.input_type)
        )
        for file in CONTRACT
        for service in file.services_by_name.values()
        if not services or service.full_name in services
        for method in service.methods
    }


class Keys:
    """A keys file that grows and shrinks."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "keys.toml"
        self._tables: dict[str, dict[str, object]] = {}

    def add(self, name: str, *scopes: str, prefixes: tuple[str, ...] = (), **more: object) -> CallerAccess:
        """Give a key; what its holder shows."""
        table: dict[str, object] = {"name": name, "scopes": list(scopes), **more}
        if prefixes:
            table["prefixes"] = list(prefixes)
        if "certificate" not in more:
            table["sha256"] = digest_of(secret_of(name)).hex()
        self._tables[name] = table
        self._write()
        return CallerAccess(CallerKey(secret_of(name)))

    def take(self, name: str) -> None:
        """Take a key away."""
        del self._tables[name]
        self._write()

    def common(self, **more: object) -> CommonSettings:
        """Settings that name the file."""
        return CommonSettings(keys_file=str(self.path), **more)  # type: ignore[arg-type]  # as the fields are

    def access(self, **more: object) -> RoleAccess:
        """A role's access by the file."""
        return RoleAccess(self.common(**more))

    def _write(self) -> None:
        lines: list[str] = []
        for table in self._tables.values():
            lines += ["[[key]]", *(f"{name} = {json.dumps(value)}" for name, value in table.items()), ""]
        draft = self.path.with_suffix(".new")
        draft.write_text("\n".join(lines), encoding="utf-8")
        draft.replace(self.path)


def secret_of(name: str) -> str:
    """The secret of a key of `Keys`."""
    return f"secret-of-{name}"


@asynccontextmanager
async def calling(address: str, access: CallerAccess) -> AsyncIterator[grpc.aio.Channel]:
    """A connection of one caller."""
    async with access.open_channel(address, own_connection=True) as channel:
        yield channel


async def outcome(
    channel: grpc.aio.Channel, method: str, request: bytes = b"", *, timeout_s: float = 5.0
) -> EddylineError | None:
    """Make a call of any kind, with one message; the error it ends with, None = it answered or ended well."""
    calls: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(method)
    for _ in range(TRIES):
        call = calls(iter([request]), timeout=timeout_s)
        try:
            async for _answer in call:
                return None
        except grpc.aio.AioRpcError as error:
            if not is_lost(error):
                return unwrap(error)
        else:
            return None
        finally:
            call.cancel()
    raise AssertionError(f"how {method} ended was lost {TRIES} times")


def is_lost(error: grpc.aio.AioRpcError) -> bool:
    """The message was sent to a call that was over: gRPC's client forgets then how the server ended it."""
    return error.details() == "Internal error from Core"
