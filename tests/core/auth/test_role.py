"""Access of a role: allowed binds, files that refuse the start, TLS and certificates over real connections."""

from __future__ import annotations

from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from eddyline.core.auth.caller_channel import CallerAccess, CallerKey
from eddyline.core.auth.grant import Scope, caller
from eddyline.core.auth.role import POLL_S, RoleAccess
from eddyline.core.errors import EddylineError, PermissionDenied, Unauthenticated
from eddyline.core.runtime.settings import CommonSettings, SettingsError, masked
from eddyline.core.server.server import make_server
from eddyline.core.tls.files import ClientTls, read_authority, read_certificate
from eddyline.core.transport.status import unwrap
from eddyline.v1 import cluster_pb2, cluster_pb2_grpc
from tests.support.access import Keys, outcome, secret_of
from tests.support.certificates import Authority, Certificate, Files, encrypt_key
from tests.support.manual_clock import ManualClock
from tests.support.store.served import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("both_wires")


class WhoAmI(cluster_pb2_grpc.ClusterServiceServicer):
    """Tells a caller who it is."""

    async def GetTopology(self, request: object, context: object) -> cluster_pb2.GetTopologyResponse:
        return cluster_pb2.GetTopologyResponse(cluster_id=caller().name)

    async def GetStatus(self, request: object, context: object) -> cluster_pb2.GetStatusResponse:
        scopes = sorted(scope.value for scope in caller().scopes)
        return cluster_pb2.GetStatusResponse(reason=",".join(scopes))


@asynccontextmanager
async def serving(access: RoleAccess) -> AsyncIterator[str]:
    server = make_server("127.0.0.1:0", access=access)
    cluster_pb2_grpc.add_ClusterServiceServicer_to_server(WhoAmI(), server.grpc)
    address = await server.start()
    try:
        yield address
    finally:
        await server.stop(0)


async def who_am_i(address: str, access: CallerAccess) -> str | EddylineError:
    async with access.open_channel(address, own_connection=True) as channel:
        try:
            answer = await cluster_pb2_grpc.ClusterServiceStub(channel).GetTopology(
                cluster_pb2.GetTopologyRequest(), timeout=5
            )
        except grpc.aio.AioRpcError as error:
            return unwrap(error)
    return answer.cluster_id


def tls_settings(authority: Authority, **more: Any) -> dict[str, Any]:
    own = authority.sign("server")
    return {"tls_cert": str(own.certificate), "tls_key": str(own.key), "tls_ca": str(authority.own.certificate), **more}


def client(authority: Authority, own: Certificate | None = None, secret: str = "") -> CallerAccess:
    certificate = read_certificate(str(own.certificate), str(own.key)) if own is not None else None
    return CallerAccess(CallerKey(secret), ClientTls(read_authority(str(authority.own.certificate)), certificate))


@pytest.mark.parametrize("listen", ["0.0.0.0:7701", "[::]:7701", "10.0.0.1:7701", "a.host:7701"])
def test_binds_other_than_loopback_need_keys(tmp_path: Path, listen: str) -> None:
    keys, authority = Keys(tmp_path), Authority(tmp_path / "ca")
    keys.add("one", "read")
    keys.access().check_listen(listen)
    ca = str(authority.own.certificate)
    RoleAccess(CommonSettings(**tls_settings(authority, tls_client_ca=ca))).check_listen(listen)
    for common in (CommonSettings(), CommonSettings(**tls_settings(authority))):
        access = RoleAccess(common)
        access.check_listen("127.0.0.1:0")
        with pytest.raises(SettingsError, match="EDDYLINE_COMMON_KEYS_FILE"):
            access.check_listen(listen)


async def test_keys_over_tls(tmp_path: Path) -> None:
    keys, authority = Keys(tmp_path), Authority(tmp_path / "ca")
    plain = keys.add("one", "read")
    access = RoleAccess(keys.common(**tls_settings(authority)))
    async with serving(access) as address:
        assert await who_am_i(address, client(authority, secret=secret_of("one"))) == "one"
        assert isinstance(await who_am_i(address, client(authority)), Unauthenticated)
        unreachable = await who_am_i(address, plain)
        assert isinstance(unreachable, EddylineError)
        assert unreachable.reason == "NOT_READY"
        other = client(Authority(tmp_path / "other"), secret=secret_of("one"))
        stranger = await who_am_i(address, other)
        assert isinstance(stranger, EddylineError)
        assert stranger.reason == "NOT_READY"


async def test_certificates_alone_open_everything_to_their_holders(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    common = CommonSettings(**tls_settings(authority, tls_client_ca=str(authority.own.certificate)))
    async with serving(RoleAccess(common)) as address:
        holder = client(authority, authority.sign("billing"))
        assert await who_am_i(address, holder) == "billing"
        async with holder.open_channel(address) as channel:
            answer = await cluster_pb2_grpc.ClusterServiceStub(channel).GetStatus(cluster_pb2.GetStatusRequest())
        assert answer.reason == ",".join(sorted(scope.value for scope in Scope))
        foreign = Authority(tmp_path / "other").sign("billing")
        for access in (client(authority), client(authority, foreign)):
            refused = await who_am_i(address, access)
            assert isinstance(refused, EddylineError)
            assert refused.reason == "NOT_READY"


async def test_with_keys_a_certificate_counts_where_the_file_names_it(tmp_path: Path) -> None:
    keys, authority = Keys(tmp_path), Authority(tmp_path / "ca")
    keys.add("of-a-certificate", "read", certificate="billing")
    keys.add("of-a-secret", "write")
    ca = str(authority.own.certificate)
    async with serving(RoleAccess(keys.common(**tls_settings(authority, tls_client_ca=ca)))) as address:
        known, unknown = authority.sign("billing"), authority.sign("shipping")
        assert await who_am_i(address, client(authority, known)) == "of-a-certificate"
        assert await who_am_i(address, client(authority, unknown, secret_of("of-a-secret"))) == "of-a-secret"
        assert await who_am_i(address, client(authority, known, secret_of("of-a-secret"))) == "of-a-secret"
        assert isinstance(await who_am_i(address, client(authority, unknown)), Unauthenticated)
        assert isinstance(await who_am_i(address, client(authority, known, "wrong")), Unauthenticated)


async def test_certificate_without_a_common_name_is_known_by_its_uri_or_dns_name(tmp_path: Path) -> None:
    spiffe = "spiffe://example.org/ns/prod/sa/billing"
    keys, authority = Keys(tmp_path), Authority(tmp_path / "ca")
    keys.add("by-uri", "read", certificate=spiffe)
    keys.add("by-dns", "read", certificate="dns:billing.example.com")
    keys.add("by-common-name", "read", certificate="billing")
    ca = str(authority.own.certificate)
    async with serving(RoleAccess(keys.common(**tls_settings(authority, tls_client_ca=ca)))) as address:
        for expected, signed in {
            "by-uri": authority.sign_names("uri", uris=["https://example.org/x", spiffe]),
            "by-dns": authority.sign_names("dns", dns=["other.example.com", "billing.example.com"]),
            "by-common-name": authority.sign_names("all", common_name="billing", uris=[spiffe]),
        }.items():
            assert await who_am_i(address, client(authority, signed)) == expected
        for stranger in (
            authority.sign_names("other", uris=[f"{spiffe}/other"]),
            authority.sign_names("disguised", common_name=spiffe),
            authority.sign_names("disguised-dns", common_name="dns:billing.example.com", dns=["billing"]),
            authority.sign_names("nameless"),
        ):
            assert isinstance(await who_am_i(address, client(authority, stranger)), Unauthenticated)


async def test_without_keys_a_certificate_is_called_by_whatever_name_it_has(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    common = CommonSettings(**tls_settings(authority, tls_client_ca=str(authority.own.certificate)))
    async with serving(RoleAccess(common)) as address:
        by_uri = authority.sign_names("uri", uris=["spiffe://example.org/a"])
        assert await who_am_i(address, client(authority, by_uri)) == "spiffe://example.org/a"
        assert await who_am_i(address, client(authority, authority.sign_names("none"))) == "certificate"


async def test_only_a_certificate_with_the_role_scope_calls_for_others(tmp_path: Path) -> None:
    keys, authority = Keys(tmp_path), Authority(tmp_path / "ca")
    keys.add("ingest", "role", certificate="ingest")
    keys.add("someone", "read", certificate="someone")
    principal = (("x-eddyline-principal", '{"name":"caller","scopes":["read"],"prefixes":["a"]}'),)
    ca = str(authority.own.certificate)
    async with serving(RoleAccess(keys.common(**tls_settings(authority, tls_client_ca=ca)))) as address:
        for name, expected in (("ingest", "caller"), ("someone", None)):
            async with client(authority, authority.sign(name)).open_channel(address, own_connection=True) as channel:
                call = cluster_pb2_grpc.ClusterServiceStub(channel).GetTopology(
                    cluster_pb2.GetTopologyRequest(), metadata=principal
                )
                if expected is not None:
                    assert (await call).cluster_id == expected
                    continue
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call
                assert isinstance(unwrap(caught.value), PermissionDenied)


async def test_files_are_polled_by_the_clock(tmp_path: Path) -> None:
    keys, clock = Keys(tmp_path), ManualClock()
    keys.add("one", "read")
    own = tmp_path / "own.key"
    own.write_text("first\n", encoding="utf-8")
    access = keys.access(key_file=str(own))
    late = CallerAccess(CallerKey(secret_of("late")))
    async with access.running(clock), serving(access) as address:
        keys.add("late", "read")
        own.write_text("second-one\n", encoding="utf-8")
        assert isinstance(await who_am_i(address, late), Unauthenticated)
        shown = access.caller.key
        while await who_am_i(address, late) != "late" or shown.metadata()[0][1] != "Bearer second-one":
            clock.advance(POLL_S)
        assert "second" not in repr(access.caller)


DAY_MS = 86_400_000
BEGINS, ENDS = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 2, 1, tzinfo=UTC)


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """Setting and reason of each warning of a certificate's dates."""
    found = [record for record in caplog.records if record.message == "certificate not valid"]
    assert all(record.levelname == "WARNING" for record in found)
    return [(record.fields["setting"], record.fields["error"]) for record in found]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("days", "expected"),
    [(-1, "it is not valid before 2026-01-01T00:00:00Z"), (1, ""), (32, "it expired at 2026-02-01T00:00:00Z")],
)
async def test_certificate_that_is_not_valid_now_warns_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, days: int, expected: str
) -> None:
    authority = Authority(tmp_path / "ca")
    own = authority.sign_names("own", dns=["localhost"], valid=(BEGINS, ENDS))
    settings = tls_settings(authority) | {"tls_cert": str(own.certificate), "tls_key": str(own.key)}
    clock = ManualClock(now_ms=round(BEGINS.timestamp() * 1000) + days * DAY_MS)
    async with RoleAccess(CommonSettings(**settings)).running(clock):
        warned = [("EDDYLINE_COMMON_TLS_CERT", expected)] if expected else []
        assert warnings_of(caplog) == warned
        await clock.pass_time(3 * POLL_S)
        assert warnings_of(caplog) == warned, "once"


async def test_certificate_that_expires_while_a_role_runs_warns_then_and_a_renewed_one_does_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path / "ca")
    files = Files(tmp_path / "tls", authority)
    files.renew(authority.sign_names("first", dns=["localhost"], valid=(BEGINS, ENDS)))
    clock = ManualClock(now_ms=round(ENDS.timestamp() * 1000) - 1_000)
    access = RoleAccess(CommonSettings(tls_cert=str(files.certificate), tls_key=str(files.key), tls_ca=str(files.ca)))
    access.log_invalid_dates(clock)
    assert warnings_of(caplog) == []
    clock.advance(2)
    access.log_invalid_dates(clock)
    assert warnings_of(caplog) == [("EDDYLINE_COMMON_TLS_CERT", "it expired at 2026-02-01T00:00:00Z")]
    files.renew(authority.sign_names("second", dns=["localhost"]))
    await access.poll()
    access.log_invalid_dates(clock)
    assert len(warnings_of(caplog)) == 1


async def test_authorities_warn_where_none_of_them_is_valid(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    authority = Authority(tmp_path / "ca")
    old = authority.sign_names("old", common_name="old", valid=(BEGINS, ENDS)).certificate
    clock = ManualClock(now_ms=round(ENDS.timestamp() * 1000) + DAY_MS)
    bundle = tmp_path / "bundle.pem"
    for contents, expected in (
        ([old, authority.own.certificate], []),
        ([old, old], ["EDDYLINE_COMMON_TLS_CA", "EDDYLINE_COMMON_TLS_CLIENT_CA"]),
    ):
        bundle.write_bytes(b"".join(one.read_bytes() for one in contents))
        settings = tls_settings(authority) | {"tls_ca": str(bundle), "tls_client_ca": str(bundle)}
        RoleAccess(CommonSettings(**settings)).log_invalid_dates(clock)
        assert [setting for setting, _ in warnings_of(caplog)] == expected


async def test_error_inside_the_block_is_not_wrapped(tmp_path: Path) -> None:
    keys = Keys(tmp_path)
    keys.add("one", "read")
    with pytest.raises(SettingsError, match="of the role"):
        async with keys.access().running(ManualClock()):
            raise SettingsError("of the role")


@pytest.mark.parametrize("wrong", ["missing", "key", "certificate", "encrypted", "authority", "half"])
def test_files_that_cannot_be_used_refuse_the_start(tmp_path: Path, wrong: str) -> None:
    authority = Authority(tmp_path / "ca")
    settings = tls_settings(authority)
    other = authority.sign("other")
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("not PEM", encoding="utf-8")
    match wrong:
        case "missing":
            settings["tls_key"] = str(tmp_path / "nowhere.key")
        case "key":
            settings["tls_key"] = str(other.key)
        case "certificate":
            settings["tls_cert"] = str(garbage)
        case "encrypted":
            settings["tls_cert"] = str(other.certificate)
            settings["tls_key"] = str(encrypt_key(other, tmp_path / "encrypted.key"))
        case "authority":
            settings["tls_ca"] = str(garbage)
        case "half":
            settings["tls_key"] = ""
    with pytest.raises(SettingsError, match="EDDYLINE_COMMON_TLS_"):
        RoleAccess(CommonSettings(**settings))


@pytest.mark.parametrize("content", [None, "", "[[key]]", "x" * 20])
def test_an_invalid_keys_file_refuses_the_start(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "keys.toml"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(SettingsError, match="EDDYLINE_COMMON_KEYS_FILE"):
        RoleAccess(CommonSettings(keys_file=str(path)))
    with pytest.raises(SettingsError, match="EDDYLINE_COMMON_KEY_FILE"):
        RoleAccess(CommonSettings(key_file=str(tmp_path)))


def test_clients_certificates_need_one_of_the_server(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="TLS_CLIENT_CA"):
        CommonSettings(tls_client_ca=str(tmp_path))


def test_no_secret_is_printed_at_the_start(tmp_path: Path) -> None:
    keys = Keys(tmp_path)
    keys.add("one", "read")
    own = tmp_path / "own.key"
    own.write_text(secret_of("role"), encoding="utf-8")
    common = keys.common(key_file=str(own))
    access = RoleAccess(common)
    assert "secret-of" not in f"{masked(common, prefix='')} {access.caller!r} {access.interceptor!r}"


async def test_calls_without_a_known_key_are_counted(tmp_path: Path) -> None:
    keys = Keys(tmp_path)
    keys.add("one", "read")
    access = keys.access()
    async with serving(access) as address:
        for _ in range(3):
            await who_am_i(address, CallerAccess())
        await until(lambda: access.interceptor.refused_count == 3)


async def test_a_call_without_a_rule_is_refused_to_every_caller(tmp_path: Path) -> None:
    keys = Keys(tmp_path)
    everything = keys.add("all", *(scope.value for scope in Scope))

    async def answer(request: bytes, context: object) -> bytes:
        raise AssertionError("not called")

    server = make_server("127.0.0.1:0", access=keys.access())
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {"Ask": grpc.unary_unary_rpc_method_handler(answer)}
    server.grpc.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("eddyline.test.Unruled", handlers),))
    address = await server.start()
    try:
        async with everything.open_channel(address, own_connection=True) as channel:
            assert isinstance(await outcome(channel, "/eddyline.test.Unruled/Ask"), PermissionDenied)
            nowhere = await outcome(channel, "/eddyline.test.Unruled/Nowhere")
            assert nowhere is not None
            assert nowhere.reason == "UNIMPLEMENTED"
    finally:
        await server.stop(0)
