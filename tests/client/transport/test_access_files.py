"""A client's key and certificates are those that their files hold, while it is connected and without a restart."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from eddyline.client.transport.access import client_access
from eddyline.client.transport.access_files import LOOK_S, AccessFiles
from tests.support.certificates import Authority, Files, replace
from tests.support.manual_clock import ManualClock

if TYPE_CHECKING:
    from pathlib import Path

    from eddyline.core.auth.caller_channel import CallerAccess


def files_of(access: CallerAccess) -> AccessFiles:
    assert isinstance(access.files, AccessFiles)
    return access.files


def shown_chain(access: CallerAccess) -> bytes:
    """The certificate that its next connection shows."""
    assert access.renewed is not None
    own = access.renewed.newest.certificate
    assert own is not None
    return own.chain


async def test_a_new_key_goes_with_calls_and_a_spoilt_one_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "my.key"
    file.write_text("first\n", encoding="utf-8")
    access = client_access(key_file=str(file))
    replace(file, b"second\n")
    await files_of(access).poll()
    assert access.key.metadata() == (("authorization", "Bearer second"),)
    replace(file, b"two words\n")
    for _ in range(3):
        await files_of(access).poll()
    file.unlink()
    for _ in range(3):
        await files_of(access).poll()
    assert access.key.metadata() == (("authorization", "Bearer second"),)
    assert [record.message for record in caplog.records] == ["key kept"] * 2
    assert all(record.__dict__["fields"]["error"].count(str(file)) == 1 for record in caplog.records)
    assert "two words" not in caplog.text
    replace(file, b"third\n")
    await files_of(access).poll()
    assert access.key.metadata() == (("authorization", "Bearer third"),)


async def test_a_certificate_is_taken_with_its_key_and_not_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = Authority(tmp_path / "old"), Authority(tmp_path / "new")
    files = Files(tmp_path / "mine", old, "client")
    access = client_access(tls_ca=str(files.ca), tls_cert=str(files.certificate), tls_key=str(files.key))
    first, renewed = files.certificate.read_bytes(), new.sign("client")
    replace(files.certificate, renewed.certificate.read_bytes())
    for _ in range(3):
        await files_of(access).poll()
    assert shown_chain(access) == first
    assert [record.message for record in caplog.records] == ["certificates kept"]
    replace(files.key, renewed.key.read_bytes())
    files.trust(old, new)
    await files_of(access).poll()
    assert shown_chain(access) == renewed.certificate.read_bytes()
    assert access.renewed is not None
    assert access.renewed.newest.ca == files.ca.read_bytes()
    for file in (files.certificate, files.key, files.ca):
        file.unlink()
        await files_of(access).poll()
    assert shown_chain(access) == renewed.certificate.read_bytes()


async def test_files_are_looked_at_until_it_is_left_and_what_is_raised_comes_out_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "my.key"
    file.write_text("first\n", encoding="utf-8")
    access, clock = client_access(key_file=str(file)), ManualClock()
    with pytest.raises(LookupError, match="mine"):
        async with files_of(access).running(clock):
            for secret in ("second", "third"):
                replace(file, secret.encode())
                await clock.pass_time(LOOK_S)
                assert access.key.metadata() == (("authorization", f"Bearer {secret}"),)
            raise LookupError("mine")
    replace(file, b"fourth")
    await clock.pass_time(LOOK_S)
    assert access.key.metadata() == (("authorization", "Bearer third"),)


async def test_channels_that_were_replaced_are_closed_when_it_is_left(tmp_path: Path) -> None:
    old, new = Authority(tmp_path / "old"), Authority(tmp_path / "new")
    files, clock = Files(tmp_path / "mine", old, "client"), ManualClock()
    access = client_access(tls_ca=str(files.ca))
    async with files_of(access).running(clock), access.open_channel("127.0.0.1:1") as channel:
        files.trust(new)
        await clock.pass_time(LOOK_S)
        channel.get_state()  # goes by the newest from here on, and has no use for the first
        assert access.renewed is not None
        assert len(access.renewed._idle) == 1
    assert not access.renewed._idle


def test_a_key_that_is_given_goes_before_a_file_and_nothing_is_looked_at(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    access = client_access(key="mine", key_file=str(tmp_path / "not there"))
    assert access.files is None
    assert client_access(tls=True).files is None
    assert not caplog.records
