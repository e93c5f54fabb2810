"""Certificates renewed while a role runs: used by new connections once both files fit, and logged."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import grpc
import pytest

from eddyline.core.auth.role import POLL_S, RoleAccess
from eddyline.core.errors import EddylineError
from eddyline.core.runtime.settings import CommonSettings, SettingsError
from eddyline.core.tls.files import TLS_BYTES_MAX
from eddyline.v1 import cluster_pb2, cluster_pb2_grpc
from tests.core.auth.test_role import client, serving, who_am_i
from tests.support.certificates import Authority, Files, replace, serial, shown
from tests.support.hang import HANG_S
from tests.support.manual_clock import ManualClock

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("both_wires")


def access_of(files: Files, *, mutual: bool = True) -> RoleAccess:
    return RoleAccess(CommonSettings(**files.settings(mutual=mutual)))  # type: ignore[arg-type]  # as the fields are


async def serial_at(address: str) -> int:
    return await asyncio.to_thread(shown, address)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Events of the log, with their fields, but for those at the start."""
    return [
        f"{record.getMessage()} {getattr(record, 'fields', {})}"
        for record in caplog.records
        if record.name == "eddyline.core.auth.role"
    ]


def broken(path: Path, trouble: str, authority: Authority) -> bytes:
    """Break a file; what was in it."""
    good = path.read_bytes()
    match trouble:
        case "garbage":
            replace(path, b"not PEM: " + good[30:90])
        case "key of another":
            replace(path, authority.sign("other").key.read_bytes())
        case "large":
            replace(path, good + b"#" * TLS_BYTES_MAX)
        case _:
            path.unlink()
            if trouble == "folder":
                path.mkdir()
    return good


def mended(path: Path, good: bytes) -> None:
    """Put back what was in it."""
    if path.is_dir():
        path.rmdir()
    replace(path, good)


async def test_new_connections_see_the_renewed_certificate(
    files: Files, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    first = serial(files.certificate)
    access = access_of(files, mutual=False)
    async with serving(access) as address:
        assert await serial_at(address) == first
        renewed = authority.sign("role", not_after=datetime(2040, 2, 3, 4, 5, 6, tzinfo=UTC))
        files.renew(renewed)
        assert await serial_at(address) == first
        await access.poll()
        assert await serial_at(address) == serial(renewed.certificate) != first
        assert access.certificate_expires_s() == datetime(2040, 2, 3, 4, 5, 6, tzinfo=UTC).timestamp()
        await access.poll()
    (line,) = said(caplog)
    assert line.startswith("certificates replaced")
    assert str(files.certificate) in line
    assert "2040-02-03T04:05:06Z" in line


async def test_files_are_polled_by_the_clock(files: Files, authority: Authority) -> None:
    clock, access = ManualClock(), access_of(files, mutual=False)
    async with access.running(clock), serving(access) as address:
        renewed = authority.sign("role")
        files.renew(renewed)
        async with asyncio.timeout(HANG_S):
            while await serial_at(address) != serial(renewed.certificate):
                clock.advance(POLL_S)


@pytest.mark.parametrize("comes_first", ["certificate", "key"])
async def test_half_of_a_renewed_pair_is_not_used_until_both_fit(
    files: Files, authority: Authority, comes_first: str, caplog: pytest.LogCaptureFixture
) -> None:
    first, renewed = serial(files.certificate), authority.sign("role")
    access = access_of(files, mutual=False)
    async with serving(access) as address:
        halves = {"certificate": (files.certificate, renewed.certificate), "key": (files.key, renewed.key)}
        path, content = halves.pop(comes_first)
        replace(path, content.read_bytes())
        await access.poll()
        assert await serial_at(address) == first
        assert not said(caplog), "files that are being written are no trouble"
        ((path, content),) = halves.values()
        replace(path, content.read_bytes())
        await access.poll()
        assert await serial_at(address) == serial(renewed.certificate)
    assert not said(caplog)


@pytest.mark.parametrize("trouble", ["garbage", "gone", "key of another", "large", "folder"])
@pytest.mark.parametrize("which", ["certificate", "key", "ca"])
async def test_unusable_file_is_logged_once_and_the_previous_one_stays(
    files: Files, authority: Authority, which: str, trouble: str, caplog: pytest.LogCaptureFixture
) -> None:
    path: Path = getattr(files, which)
    first, access = serial(files.certificate), access_of(files)
    holder = client(authority, authority.sign("a-client"))
    good = broken(path, trouble, authority)
    async with serving(access) as address:
        for _ in range(4):
            await access.poll()
        assert await who_am_i(address, holder) == "a-client"
        (line,) = said(caplog)
        assert line.startswith("certificates kept")
        assert str(path) in line
        assert good[30:90].decode() not in line
        mended(path, good)
        await access.poll()
        renewed = authority.sign("role")
        files.renew(renewed)
        await access.poll()
        assert access.http_context() is not None
        assert serial(renewed.certificate) != first
        assert await who_am_i(address, holder) == "a-client"
    assert len(said(caplog)) == 1


async def test_renewed_authority_of_clients_refuses_those_of_the_old_one(
    tmp_path: Path, files: Files, authority: Authority
) -> None:
    other = Authority(tmp_path / "other")
    access, old, new = access_of(files), client(authority, authority.sign("old")), client(authority, other.sign("new"))
    async with serving(access) as address:
        assert await who_am_i(address, old) == "old"
        assert isinstance(await who_am_i(address, new), EddylineError)
        files.trust(authority, other)
        await access.poll()
        assert await who_am_i(address, old) == "old"
        assert await who_am_i(address, new) == "new"
        files.trust(other)
        await access.poll()
        assert await who_am_i(address, new) == "new"
        refused = await who_am_i(address, old)
        assert isinstance(refused, EddylineError)
        assert refused.reason == "NOT_READY"


async def test_open_channel_uses_renewed_certificates(tmp_path: Path, files: Files, authority: Authority) -> None:
    other = Authority(tmp_path / "other")
    theirs = Files(tmp_path / "theirs", authority, "server")
    server, caller = access_of(theirs), access_of(files)
    async with serving(server) as address, caller.caller.open_channel(address, own_connection=True) as channel:
        assert await name_over(channel) == "role"
        theirs.renew(other.sign("server"))
        theirs.trust(other)
        await server.poll()
        assert await name_over(channel) == "role", "a connection that stands is not judged again"
        files.renew(other.sign("renewed"))
        files.trust(other)
        await caller.poll()
        assert await name_over(channel) == "renewed"


async def test_expired_certificates_of_both_sides_are_healed_while_the_channel_is_open(
    tmp_path: Path, files: Files, authority: Authority
) -> None:
    theirs, past = Files(tmp_path / "theirs", authority), datetime(2020, 1, 1, tzinfo=UTC)
    for side in (files, theirs):
        side.renew(authority.sign("expired", not_after=past))
    server, caller = access_of(theirs), access_of(files)
    assert server.certificate_expires_s() == past.timestamp()
    async with serving(server) as address, caller.caller.open_channel(address, own_connection=True) as channel:
        assert await name_over(channel) is None
        theirs.renew(authority.sign("server"))
        await server.poll()
        assert await name_over(channel) is None
        files.renew(authority.sign("renewed"))
        await caller.poll()
        assert await name_over(channel) == "renewed"


async def name_over(channel: grpc.aio.Channel) -> str | None:
    """Return the caller's name that the server sees; None = the handshake fails."""
    try:
        answer = await cluster_pb2_grpc.ClusterServiceStub(channel).GetTopology(
            cluster_pb2.GetTopologyRequest(), timeout=10
        )
    except grpc.aio.AioRpcError as error:
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        return None
    return answer.cluster_id


async def test_rewriting_the_same_files_changes_nothing(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    access = access_of(files)
    held = access.http_context()
    for path in (files.certificate, files.key, files.ca):
        replace(path, path.read_bytes())
    await access.poll()
    assert access.http_context() is held
    assert not said(caplog)


def test_role_without_certificates_has_nothing_that_expires() -> None:
    access = RoleAccess()
    assert access.certificate_expires_s() == 0
    assert access.http_context() is None


def test_file_that_is_too_large_refuses_the_start(files: Files) -> None:
    replace(files.ca, files.ca.read_bytes() + b"#" * TLS_BYTES_MAX)
    with pytest.raises(SettingsError, match=r"TLS_.*ca\.crt"):
        access_of(files)


async def test_many_handshakes_while_files_are_replaced_all_end_well(files: Files, authority: Authority) -> None:
    access = access_of(files)
    serials = {serial(files.certificate)}
    holder, answers = client(authority, authority.sign("a-client")), list[object]()
    async with serving(access) as address, asyncio.timeout(HANG_S), asyncio.TaskGroup() as tasks:

        async def ask() -> None:
            for _ in range(10):
                answers.append(await who_am_i(address, holder))

        for _ in range(4):
            tasks.create_task(ask())
        while len(serials) < 10:
            renewed = authority.sign("role")
            serials.add(serial(renewed.certificate))
            files.renew(renewed)
            await access.poll()
    assert answers == ["a-client"] * 40
