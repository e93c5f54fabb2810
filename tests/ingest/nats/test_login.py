"""Login at NATS: credentials in their order, TLS, and no secret in any output."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING

import nkeys  # type: ignore[import-untyped]  # no py.typed in it
import pytest

from eddyline.core.errors import NatsUnreachable
from eddyline.core.runtime.clock import SystemClock
from eddyline.core.runtime.settings import SettingsError, masked
from eddyline.ingest.config import PREFIX, IngestSettings
from eddyline.ingest.nats.connection import Connection
from eddyline.ingest.nats.login import nats_access
from eddyline.ingest.readiness import Readiness
from tests.support.certificates import Authority, Files, encrypt_key, replace
from tests.support.hang import HANG_S
from tests.support.nats.accounts import Accounts, Key, credentials, new_accounts
from tests.support.nats.server import running_nats

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

PASSWORD = "p@ss:w/o#rd%"
PASSWORD_IN_URL = "p%40ss%3Aw%2Fo%23rd%25"
PASSWORD_CONFIG = f'authorization {{ user: "me@here", password: "{PASSWORD}" }}\n'


@pytest.fixture
def accounts() -> Accounts:
    return new_accounts()


@asynccontextmanager
async def connection(settings: IngestSettings, readiness: Readiness | None = None) -> AsyncIterator[Connection]:
    def tell() -> None:
        if readiness is not None:
            readiness.set_nats(made.connected, refused=made.refused)

    made = Connection(nats_access(settings), name="test", clock=SystemClock(), rng=Random(1), on_change=tell)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(made.run())
        try:
            yield made
        finally:
            running.cancel()


async def let_in(settings: IngestSettings) -> bool:
    """True = JetStream answers."""
    async with connection(settings) as made:
        await asyncio.wait_for(made.wait_connected(), 10)
        answer = await made.client.request("$JS.API.INFO", b"", timeout=5)
        return "error" not in json.loads(answer.data)


async def refused(settings: IngestSettings) -> str:
    """Error of a connection that cannot be made."""
    async with connection(settings) as made:
        return await first_error_of(made)


async def first_error_of(made: Connection) -> str:
    """First error of a connection that does not come up."""
    async with asyncio.timeout(HANG_S):
        while not made.trouble:  # noqa: ASYNC110 - nats-py's own tasks find it, and say it to nobody else
            await asyncio.sleep(0)
    assert not made.connected
    return made.trouble


def in_base64(text: bytes) -> str:
    return base64.b64encode(text).decode()


async def test_credentials_in_base64_let_in_and_nothing_of_them_is_on_disk(
    tmp_path: Path, accounts: Accounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("TMPDIR", str(home))
    monkeypatch.chdir(home)
    with running_nats(tmp_path / "nats", config=accounts.config) as server:
        assert await let_in(IngestSettings(nats_url=server.url, nats_creds=in_base64(accounts.user())))
    assert not list(home.iterdir())


async def test_a_credentials_file_is_read_again_at_each_connection(tmp_path: Path, accounts: Accounts) -> None:
    file = tmp_path / "user.creds"
    # Expired: the server refuses it, until there is a new one.
    file.write_bytes(accounts.user(expires_s=1_700_000_001))
    with running_nats(tmp_path / "nats", config=accounts.config) as server:
        settings = IngestSettings(nats_url=server.url, nats_creds_file=str(file))
        async with connection(settings) as made:
            assert await first_error_of(made)
            file.write_bytes(accounts.user())
            await asyncio.wait_for(made.wait_connected(), 10)
            # What was read last is used on, where the file is gone or spoilt.
            for spoil in (lambda: file.write_bytes(b"nonsense"), file.unlink):
                spoil()
                server.kill()
                await asyncio.wait_for(made.lost.wait(), 10)
                server.start()
                await asyncio.wait_for(made.wait_connected(), 10)


async def test_credentials_that_expire_under_a_connection_are_read_again_from_the_file(
    tmp_path: Path, accounts: Accounts
) -> None:
    file = tmp_path / "user.creds"
    with running_nats(tmp_path / "nats", config=accounts.config) as server:
        file.write_bytes(accounts.user(expires_s=SystemClock().now_ms() // 1000 + 3))
        settings = IngestSettings(nats_url=server.url, nats_creds_file=str(file))
        async with connection(settings) as made:
            await asyncio.wait_for(made.wait_connected(), 10)
            file.write_bytes(accounts.user())
            await asyncio.wait_for(made.lost.wait(), 10)
            await asyncio.wait_for(made.wait_connected(), 10)


async def test_user_and_password_of_the_url_are_percent_decoded_and_removed_from_it(tmp_path: Path) -> None:
    with running_nats(tmp_path, config=PASSWORD_CONFIG) as server:
        settings = IngestSettings(nats_url=f"nats://me%40here:{PASSWORD_IN_URL}@{server.address}")
        assert nats_access(settings).servers == (f"nats://{server.address}",)
        assert await let_in(settings)
        assert await let_in(IngestSettings(nats_url=f"me%40here:{PASSWORD_IN_URL}@{server.address}"))
        assert "Authorization" in await refused(IngestSettings(nats_url=server.url))


async def test_refused_credentials_are_logged_once_and_in_every_error(
    tmp_path: Path, accounts: Accounts, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eddyline.ingest.nats.connection.RECONNECT_S_MAX", 0.1)
    file = tmp_path / "user.creds"
    file.write_bytes(new_accounts().user())  # of another operator
    readiness = Readiness()
    with running_nats(tmp_path / "nats", config=accounts.config) as server:
        settings = IngestSettings(nats_url=server.url, nats_creds_file=str(file))
        async with connection(settings, readiness) as made:
            with caplog.at_level(logging.DEBUG, logger="eddyline.ingest.nats.connection"):
                async with asyncio.timeout(HANG_S):
                    while said(caplog, "Authorization") < 10:  # noqa: ASYNC110 - tries of nats-py's own tasks
                        await asyncio.sleep(0)
            warned = [
                one for one in caplog.records if one.levelno >= logging.WARNING and one.name.endswith("connection")
            ]
            texts = [str(vars(one)["fields"]["error"]) for one in warned]
            assert sum("Authorization" in text for text in texts) == 1
            assert len(texts) == len(set(texts)) <= 3
            assert made.refused
            assert readiness.reason.startswith("NATS_UNREACHABLE (it refuses the credentials)")
            with pytest.raises(NatsUnreachable) as raised:
                _ = made.client
            assert "NATS refuses the credentials of ingest" in raised.value.message
            with pytest.raises(NatsUnreachable) as raised, made.publishing("x"):
                pass
            advice = raised.value.advice
            assert "EDDYLINE_INGEST_NATS_CREDS_FILE" in advice
            assert "<" not in advice
            file.write_bytes(accounts.user())
            await asyncio.wait_for(made.wait_connected(), 10)
            assert not made.refused
            assert "NATS" not in readiness.reason
            # Away is not refused, and is said again.
            lost = made.lost
            server.kill()
            await asyncio.wait_for(lost.wait(), 10)
            await first_error_of(made)
            assert readiness.reason.startswith("NATS_UNREACHABLE")
            assert not made.refused


def said(caplog: pytest.LogCaptureFixture, words: str) -> int:
    """Number of log entries of the connection with an error that contains this text."""
    return sum(words in str(vars(one).get("fields", {}).get("error", "")) for one in caplog.records)


async def test_a_token_of_the_url(tmp_path: Path) -> None:
    with running_nats(tmp_path, config='authorization { token: "s3cr/t" }\n') as server:
        assert await let_in(IngestSettings(nats_url=f"nats://s3cr%2Ft@{server.address}"))


async def test_an_nkey_is_read_from_its_file_at_each_connection(tmp_path: Path) -> None:
    keys = [Key(nkeys.PREFIX_BYTE_USER) for _ in range(2)]
    users = ", ".join(f"{{ nkey: {key.public} }}" for key in keys)
    file = tmp_path / "user.nk"
    file.write_bytes(Key(nkeys.PREFIX_BYTE_USER).seed)
    with running_nats(tmp_path / "nats", config=f"authorization {{ users: [{users}] }}\n") as server:
        settings = IngestSettings(nats_url=server.url, nats_nkey_file=str(file))
        assert "uthorization" in await refused(settings)
        file.write_bytes(keys[0].seed + b"\n")
        async with connection(settings) as made:
            await asyncio.wait_for(made.wait_connected(), 10)
            file.write_bytes(keys[1].seed)
            before = made.lost
            server.stop()
            await asyncio.wait_for(before.wait(), 10)
            server.start()
            await asyncio.wait_for(made.wait_connected(), 10)
            assert "error" not in json.loads((await made.client.request("$JS.API.INFO", b"", timeout=5)).data)


async def test_a_bearer_jwt_needs_no_seed(tmp_path: Path, accounts: Accounts) -> None:
    file = tmp_path / "user.creds"
    file.write_bytes(accounts.user(bearer=True))
    with running_nats(tmp_path / "nats", config=accounts.config) as server:
        assert await let_in(IngestSettings(nats_url=server.url, nats_creds_file=str(file)))


async def test_a_certificate_alone_identifies_the_user(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "pki")
    theirs, ours = authority.sign("server"), authority.sign("ingest")
    config = (
        f'tls {{ cert_file: "{theirs.certificate}", key_file: "{theirs.key}", ca_file: "{authority.own.certificate}", '
        'verify_and_map: true }\nauthorization { users: [{ user: "localhost" }] }\n'
    )
    with running_nats(tmp_path / "nats", config=config) as server:
        settings = IngestSettings(
            nats_url=server.url.replace("nats://", "tls://"),
            nats_tls_ca=str(authority.own.certificate),
            nats_tls_cert=str(ours.certificate),
            nats_tls_key=str(ours.key),
        )
        assert await let_in(settings)


async def test_what_comes_first_of_several_credentials_is_used_and_the_rest_not_read(
    tmp_path: Path, accounts: Accounts
) -> None:
    with running_nats(tmp_path / "nats", config=accounts.config) as server:
        url = f"nats://me:wrong@{server.address}"
        encoded = in_base64(accounts.user())
        settings = IngestSettings(nats_url=url, nats_creds=encoded, nats_creds_file=str(tmp_path / "not there"))
        assert await let_in(settings)
        file = tmp_path / "user.creds"
        file.write_bytes(accounts.user())
        assert await let_in(IngestSettings(nats_url=url, nats_creds_file=str(file)))


async def test_tls_with_an_authority_of_our_own_and_certificates_on_both_sides(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "pki")
    theirs, ours = authority.sign("server"), authority.sign("client")
    ca = str(authority.own.certificate)
    tls = f'tls {{ cert_file: "{theirs.certificate}", key_file: "{theirs.key}", ca_file: "{ca}", verify: true }}\n'
    with running_nats(tmp_path / "nats", config=tls) as server:
        own = {"nats_tls_ca": ca, "nats_tls_cert": str(ours.certificate), "nats_tls_key": str(ours.key)}
        for scheme in ("tls", "nats"):
            assert await let_in(IngestSettings(nats_url=f"{scheme}://{server.address}", **own))  # type: ignore[arg-type]
        without = IngestSettings(nats_url=f"tls://{server.address}", nats_tls_ca=ca)
        assert await refused(without)
        stranger = IngestSettings(nats_url=f"tls://{server.address}")
        assert "certificate verify failed" in await refused(stranger)


async def test_certificates_and_authorities_are_read_again_at_each_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    before, after = Authority(tmp_path / "before"), Authority(tmp_path / "after")
    theirs, ours = Files(tmp_path / "theirs", before, "server"), Files(tmp_path / "ours", before, "client")
    tls = (
        f'tls {{ cert_file: "{theirs.certificate}", key_file: "{theirs.key}", ca_file: "{theirs.ca}", verify: true }}\n'
    )
    with running_nats(tmp_path / "nats", config=tls) as server:
        settings = IngestSettings(
            nats_url=f"tls://{server.address}",
            nats_tls_ca=str(ours.ca),
            nats_tls_cert=str(ours.certificate),
            nats_tls_key=str(ours.key),
        )
        async with connection(settings) as made:
            await asyncio.wait_for(made.wait_connected(), 10)

            async def anew() -> None:
                server.kill()
                await asyncio.wait_for(made.lost.wait(), 10)
                server.start()
                await asyncio.wait_for(made.wait_connected(), 10)

            # Between a certificate and its key nothing fits: what was read last is used on.
            replace(ours.certificate, after.sign("client").certificate.read_bytes())
            await anew()
            assert [record.message for record in caplog.records].count("nats certificates kept") == 1
            for files, name in ((theirs, "server"), (ours, "client")):
                files.renew(after.sign(name))
                files.trust(after)
            await anew()
            assert [record.message for record in caplog.records].count("nats certificates replaced") == 1
            for file in (ours.certificate, ours.key, ours.ca):
                file.unlink()
            await anew()


async def test_the_handshake_comes_first_where_the_server_wants_it(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "pki")
    theirs = authority.sign("server")
    tls = f'tls {{ cert_file: "{theirs.certificate}", key_file: "{theirs.key}", handshake_first: true }}\n'
    with running_nats(tmp_path / "nats", config=tls) as server:
        ca = str(authority.own.certificate)
        assert await let_in(IngestSettings(nats_url=f"tls://{server.address}", nats_tls_ca=ca, nats_tls_first=True))


async def test_tls_that_is_only_offered_is_used(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "pki")
    theirs = authority.sign("server")
    tls = f'allow_non_tls: true\ntls {{ cert_file: "{theirs.certificate}", key_file: "{theirs.key}" }}\n'
    with running_nats(tmp_path / "nats", config=tls) as server:
        settings = IngestSettings(nats_url=f"tls://{server.address}", nats_tls_ca=str(authority.own.certificate))
        async with connection(settings) as made:
            await asyncio.wait_for(made.wait_connected(), 10)
            assert made.client._transport._io_writer.get_extra_info("cipher")  # type: ignore[union-attr]


async def test_nothing_is_sent_to_a_server_that_does_not_encrypt(tmp_path: Path) -> None:
    said = bytearray()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b'INFO {"server_id":"x","version":"2.15.1","headers":true,"auth_required":true,"max_payload":9}\r\n'
        )
        said.extend(await reader.read(1 << 16))
        writer.close()

    async with await asyncio.start_server(listen, "127.0.0.1", 0) as plain:
        port = plain.sockets[0].getsockname()[1]
        trouble = await refused(IngestSettings(nats_url=f"tls://me:hush@127.0.0.1:{port}"))
    assert "offers no TLS" in trouble
    assert not said


def broken_credentials(accounts: Accounts) -> Iterator[tuple[str, bytes]]:
    """Descriptions of defects, each with such a file."""
    whole = accounts.user()
    jwt = whole.split(b"\n")[1].decode()
    other = Key(nkeys.PREFIX_BYTE_USER)
    yield "no NATS USER JWT", b""
    yield "no NATS USER JWT", b"-----BEGIN NATS USER JWT-----\n"
    yield "no USER NKEY SEED", whole.split(b"\n\n", maxsplit=1)[0]
    yield "does not belong to the user", credentials(jwt, other.seed.decode())
    yield "damaged", credentials(jwt, "SUAAAA")
    yield "cannot be read", credentials("a.b.c", other.seed.decode())
    yield "more than", b"x" * (65 << 10)


def test_malformed_credentials_refuse_the_start_without_a_quote(tmp_path: Path, accounts: Accounts) -> None:
    file = tmp_path / "user.creds"
    for what, text in broken_credentials(accounts):
        file.write_bytes(text)
        for settings in (IngestSettings(nats_creds_file=str(file)), IngestSettings(nats_creds=in_base64(text) or "=")):
            with pytest.raises(SettingsError) as error:
                nats_access(settings)
            said = str(error.value)
            assert what in said or "not base64" in said
            assert "NATS_CREDS" in said
            assert "\n" not in said
            assert not any(len(word) > 20 and word in said for word in text.decode().split())


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"nats_creds": "###"}, "NATS_CREDS"),
        ({"nats_creds_file": "/nowhere/user.creds"}, "NATS_CREDS_FILE"),
        ({"nats_nkey_file": "/nowhere/user.nk"}, "NATS_NKEY_FILE"),
        ({"nats_nkey_file": "/dev/null"}, "NATS_NKEY_FILE"),
        ({"nats_tls_ca": "/nowhere/ca.pem"}, "NATS_TLS_CA"),
        ({"nats_tls_ca": "/dev/null"}, "NATS_TLS_CA"),
        ({"nats_tls_cert": "/nowhere/cert.pem"}, "NATS_TLS_KEY"),
        ({"nats_tls_cert": "/nowhere/cert.pem", "nats_tls_key": "/nowhere/key"}, "NATS_TLS_CERT"),
        ({"nats_url": "nats://me:hu/sh@host:4222"}, "NATS_URL"),
        ({"nats_url": "nats://me:hu#sh@host:4222"}, "NATS_URL"),
        ({"nats_url": "ws://me:hush@host:4222"}, "NATS_URL"),
        ({"nats_url": "nats://me:hush@host:port"}, "NATS_URL"),
        ({"nats_url": "nats://me:hush@a,nats://you:hush@b"}, "NATS_URL"),
    ],
)
def test_a_setting_that_cannot_be_refuses_the_start_in_one_line(settings: dict[str, str], named: str) -> None:
    with pytest.raises(SettingsError) as error:
        nats_access(IngestSettings(**settings))  # type: ignore[arg-type]
    said = str(error.value)
    assert f"{PREFIX}{named}" in said
    assert "\n" not in said
    assert "sh@" not in said
    assert "hush" not in said


def test_a_key_with_a_passphrase_refuses_the_start_without_a_prompt(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    key = encrypt_key(authority.own, tmp_path / "encrypted.key")
    settings = IngestSettings(nats_tls_cert=str(authority.own.certificate), nats_tls_key=str(key))
    with pytest.raises(SettingsError, match="without a passphrase"):
        nats_access(settings)


async def test_no_secret_is_in_any_log_repr_or_error(
    tmp_path: Path, accounts: Accounts, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    user = accounts.user()
    file = tmp_path / "user.creds"
    file.write_bytes(accounts.user(expires_s=1_700_000_001))
    texts = []
    with running_nats(tmp_path / "nats", config=accounts.config) as server:
        url = f"nats://me:{PASSWORD_IN_URL}@{server.address}"
        for settings in (
            IngestSettings(nats_url=url),
            IngestSettings(nats_url=url, nats_creds_file=str(file)),
            IngestSettings(nats_url=f"nats://{PASSWORD_IN_URL}@{server.address}"),
        ):
            texts += [await refused(settings), repr(settings), repr(nats_access(settings))]
            texts += masked(settings, prefix=PREFIX).values()
        good = IngestSettings(nats_url=url, nats_creds=in_base64(user))
        assert await let_in(good)
        texts += [repr(good), repr(nats_access(good)), *masked(good, prefix=PREFIX).values()]
    everything = "\n".join([*texts, caplog.text, *(repr(vars(record)) for record in caplog.records)])
    secrets = [PASSWORD, PASSWORD_IN_URL, in_base64(user)]
    for text in (user, file.read_bytes()):
        secrets += [line.decode() for line in text.splitlines() if line.startswith((b"SU", b"ey"))]
    assert len(secrets) == 7
    assert not [secret for secret in secrets if secret in everything]
