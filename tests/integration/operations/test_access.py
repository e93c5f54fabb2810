"""A whole cluster of real processes with client certificates and keys: who has them is served, and nobody else."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from eddyline.cli.local_cluster.cluster import LocalCluster
from eddyline.client.connect import connect
from eddyline.client.transport.access import client_access
from eddyline.client.watch.events import Records
from eddyline.core.errors import NotReady, PermissionDenied, Unauthenticated
from eddyline.core.records.record import Op, Record
from tests.support.access import Keys, secret_of
from tests.support.certificates import Authority, Certificate
from tests.support.cluster.local_clusters import cluster_in
from tests.support.nats.bucket_load import fill_bucket

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from eddyline.core.auth.caller_channel import CallerAccess

pytestmark = pytest.mark.integration

BUCKET = "orders"
PATIENCE_S = 200


@dataclass(frozen=True, slots=True)
class Secured:
    """A running cluster, and what its callers have."""

    cluster: LocalCluster
    keys: Keys
    authority: Certificate
    client: Certificate
    folder: Path

    def access(self, name: str = "") -> CallerAccess:
        """The credentials of a key's holder; empty = no key."""
        return client_access(
            key=secret_of(name) if name else "",
            tls_ca=str(self.authority.certificate),
            tls_cert=str(self.client.certificate),
            tls_key=str(self.client.key),
        )

    async def command(self, name: str, *words: str) -> tuple[int, str]:
        """Run the command with a key; its exit code, and all that it said."""
        key_file = self.folder / f"{name}.key"
        key_file.write_text(secret_of(name) + "\n", encoding="utf-8")
        flags = ["--cluster", self.cluster.address, "--key-file", str(key_file)]
        flags += ["--tls-ca", str(self.authority.certificate)]
        flags += ["--tls-cert", str(self.client.certificate), "--tls-key", str(self.client.key)]
        return await ended(*words, *flags)


def settings_of(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Authority, Keys, Certificate]:
    """Put what roles go by into the environment; the authority, its keys and a client's certificate."""
    authority = Authority(folder / "certificates")
    roles, client, keys = authority.sign("roles"), authority.sign("a-client"), Keys(folder)
    keys.add("cluster", "role")
    keys.add("admin", "admin", "read", prefixes=("orders", "prices"))
    keys.add("everything", "read", "write", "delete", "admin")
    keys.add("writer", "write", prefixes=("prices",))
    keys.add("reader", "read", prefixes=("orders", "prices"))
    key_file = folder / "cluster.key"
    key_file.write_text(secret_of("cluster"), encoding="utf-8")
    for name, path in {
        "KEYS_FILE": keys.path,
        "KEY_FILE": key_file,
        "TLS_CERT": roles.certificate,
        "TLS_KEY": roles.key,
        "TLS_CA": authority.own.certificate,
        "TLS_CLIENT_CA": authority.own.certificate,
    }.items():
        monkeypatch.setenv(f"EDDYLINE_COMMON_{name}", str(path))
    return authority, keys, client


@asynccontextmanager
async def secured(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Secured]:
    """Bring it up."""
    authority, keys, client = settings_of(folder, monkeypatch)
    async with cluster_in(folder) as cluster:
        yield Secured(cluster, keys, authority.own, client, folder)


async def test_a_cluster_with_certificates_and_keys_serves_those_who_have_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with secured(tmp_path, monkeypatch) as secure:
        await fill_bucket(secure.cluster.nats_url, BUCKET, 5)
        code, said = await secure.command("admin", "source", "create", BUCKET, "--bucket", BUCKET)
        assert code == 0, said
        code, said = await secure.command("admin", "topic", "create", "prices", "--kind", "kv")
        assert code == 0, said
        code, said = await secure.command("admin", "topic", "create", "secrets", "--kind", "kv")
        assert (code, "PERMISSION_DENIED" in said) == (1, True), said
        code, said = await secure.command("admin", "status")
        assert code == 0, said
        async with connect(secure.cluster.address, access=secure.access("writer")) as client:
            await client.append("prices", [Record(op=Op.PUT, key=b"BTC", data=b"42")])
            with pytest.raises(PermissionDenied):
                await client.append("orders", [Record(op=Op.PUT, key=b"k", data=b"x")])
            with pytest.raises(PermissionDenied):
                await anext(client.watch("prices"))
        async with connect(secure.cluster.address, access=secure.access("reader")) as client:
            assert await values_of(secure, "reader") == {b"BTC", *(b"k%d" % number for number in range(5))}
            with pytest.raises(PermissionDenied):
                await client.delete_topic("prices")
            assert [topic.name async for topic in client.list_topics()] == ["orders", "prices"]
        await check_strangers(secure)
        await check_revoked(secure)
        audit = (tmp_path / "data" / "logs" / "store.log").read_text(encoding="utf-8")
        assert "method=ApplyService/PutSource principal=admin via=cluster" in audit
        assert "method=TopicService/CreateTopic principal=admin via=cluster" in audit
        assert "secret-of-" not in audit


async def values_of(secure: Secured, name: str) -> set[bytes]:
    """Keys of both topics, as a watch brings them."""
    found: set[bytes] = set()
    async with asyncio.timeout(PATIENCE_S), connect(secure.cluster.address, access=secure.access(name)) as client:
        async for event in client.watch(["orders", "prices"]):
            if isinstance(event, Records):
                found |= {record.key or b"" for record in event.records}
            if len(found) == 6:
                break
    return found


async def check_strangers(secure: Secured) -> None:
    """Nobody gets in without a certificate, of our authority, and a key."""
    address = secure.cluster.address
    other = Authority(secure.folder / "others").sign("a-client")
    ca = str(secure.authority.certificate)
    without = client_access(key=secret_of("reader"), tls_ca=ca)
    foreign = client_access(key=secret_of("reader"), tls_ca=ca, tls_cert=str(other.certificate), tls_key=str(other.key))
    for access in (None, without, foreign):
        with pytest.raises(NotReady):
            async with connect(address, access=access, timeout_s=1.0):
                pass
    with pytest.raises(Unauthenticated):
        async with connect(address, access=secure.access()):
            pass
    await check_advice(address, ca, Certificate(other.certificate, other.key))


async def check_advice(address: str, ca: str, foreign: Certificate) -> None:
    """A caller without TLS gets an error that names the flags for it."""
    foreign_ca = ("--tls-ca", str(foreign.certificate))
    shown = ("--tls-cert", str(foreign.certificate), "--tls-key", str(foreign.key))
    expected = {
        (): "if the cluster uses TLS, give --tls-ca FILE",
        ("--tls-ca", ca): "if the cluster needs a client certificate, give --tls-cert FILE --tls-key FILE",
        ("--tls-ca", ca, *shown): "of an authority that the cluster trusts",
        foreign_ca: "--tls-ca FILE (EDDYLINE_TLS_CA) must have the authority",
    }
    async with asyncio.TaskGroup() as asking:
        asked = {flags: asking.create_task(ended("status", "--cluster", address, *flags)) for flags in expected}
    for flags, advice in expected.items():
        code, said = asked[flags].result()
        assert (code, advice in said, "eddyline up" in said) == (1, True, False), said


async def check_revoked(secure: Secured) -> None:
    """A key that is taken away ends its watch, and opens none."""
    async with connect(secure.cluster.address, access=secure.access("reader")) as client:
        watch = client.watch("prices")
        async with asyncio.timeout(PATIENCE_S):
            await anext(watch)
            secure.keys.take("reader")
            with pytest.raises(Unauthenticated):
                async for _ in watch:
                    pass
    # Each role looks at its file by itself, once a second.
    async with asyncio.timeout(PATIENCE_S):
        while await opens(secure, "reader"):  # noqa: ASYNC110 - of other processes: there is no event
            await asyncio.sleep(0.1)


async def opens(secure: Secured, name: str) -> bool:
    """True = the key is still taken."""
    try:
        async with connect(secure.cluster.address, access=secure.access(name)) as client:
            await client.get_topic("prices")
    except Unauthenticated:
        return False
    return True


@pytest.mark.timeout(240)
async def test_demo_and_drills_run_a_cluster_with_keys_and_certificates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By flags, by the environment; and say what they lack before anything is started."""
    authority, _, client = settings_of(tmp_path, monkeypatch)
    demo = ("demo", "--once", "--free-ports", "--data", str(tmp_path / "data"))
    code, said = await ended(*demo)
    assert (code, "EDDYLINE_COMMON_TLS_CERT is set" in said, "--tls-ca" in said) == (2, True, True)
    assert not (tmp_path / "data").exists()
    shown = {"TLS_CA": authority.own.certificate, "TLS_CERT": client.certificate, "TLS_KEY": client.key}
    for name, path in shown.items():
        monkeypatch.setenv(f"EDDYLINE_{name}", str(path))
    code, said = await ended(*demo)
    assert (code, "UNAUTHENTICATED" in said) == (1, True)
    key_file = tmp_path / "everything.key"
    key_file.write_text(secret_of("everything"), encoding="utf-8")
    code, said = await ended(*demo, "--key-file", str(key_file))
    assert code == 0, said
    # shlex leaves these paths as they are: the hint is pasted into another terminal
    assert f"eddyline ls routes co. --data {tmp_path / 'data'} --key-file {key_file}    Ctrl-C" in said
    monkeypatch.setenv("EDDYLINE_KEY", secret_of("everything"))
    drills = [word for name in ("ingest", "takeover", "merge", "disk") for word in ("--only", name)]
    code, said = await ended("drill", "--short", "--rounds", "1", *drills)
    assert code == 0, said
    assert "no loss" in said


async def ended(*words: str) -> tuple[int, str]:
    """Run the command; its exit code, and all that it said."""
    started = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "eddyline.cli", *words),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "GRPC_VERBOSITY": "ERROR"},
    )
    said, _ = await started.communicate()
    assert started.returncode is not None
    return started.returncode, said.decode()
