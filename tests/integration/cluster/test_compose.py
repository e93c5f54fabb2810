"""docker-compose.yml, really run: images are what they should be, the cluster works with keys alone, and is watched.

It runs wherever an engine answers, and is skipped, with the reason, where none does
(`tests/support/cluster/container_engine.py`). One cluster serves all tests; they run in the order of this file, since the
first ones look at it while nobody has used it.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import grpc
import nats
import pytest
import pytest_asyncio
import yaml

from eddyline.client.connect import connect
from eddyline.client.transport.access import client_access
from eddyline.core.auth.caller_channel import CallerAccess
from eddyline.core.model.topic import Kind
from eddyline.core.records.record import Record
from eddyline.v1 import (
    apply_pb2,
    delivery_pb2,
    delivery_pb2_grpc,
    fold_pb2,
    fold_pb2_grpc,
    log_pb2,
    log_pb2_grpc,
    source_pb2,
    source_pb2_grpc,
    topic_pb2,
    topic_pb2_grpc,
    types_pb2,
)
from tests.support.cluster.composed import ROLES, TAG, Composed, composed
from tests.support.cluster.container_engine import ROOT, engine, images
from tests.support.telemetry.scrape import Scrape, check_complete, http_get

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.support.cluster.container_engine import Images

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(1_800),
    pytest.mark.asyncio(loop_scope="module"),
]

NOT_FOR = {
    "store": ("pyspark", "nats", "pip", "pytest"),
    "ingest": ("pyspark", "rocksdict", "pyarrow", "pip", "pytest"),
    "delivery": ("pyspark", "rocksdict", "pyarrow", "nats", "pip", "pytest"),
}
"""Packages that an image does not carry."""
CHART = ROOT / "helm/eddyline"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Images:
    engine()
    return images(tmp_path_factory.mktemp("engine"))


@pytest.fixture(scope="module")
def running(built: Images) -> Iterator[Composed]:
    for service, why in built.missing.items():
        sys.stderr.write(f"compose test: {service} is not started: {why}\n")
    with composed(built) as cluster:
        yield cluster


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(running: Composed) -> AsyncIterator[Composed]:
    """The cluster, once all three roles are healthy."""
    await running.healthy(*ROLES)
    yield running


def owner(cluster: Composed) -> CallerAccess:
    """With the key that was made for whoever runs it."""
    code, secret = cluster.inside("store", "cat", "/keys/owner.key")
    assert code == 0, secret
    return client_access(key=secret.strip())


async def test_roles_become_healthy_by_their_images_own_checks(cluster: Composed) -> None:
    for role in ROLES:
        assert cluster.container(role).attrs["State"]["Health"]["Status"] == "healthy"


@pytest.mark.parametrize("role", ROLES)
async def test_container_has_no_user_and_writes_nowhere(cluster: Composed, role: str) -> None:
    assert cluster.inside(role, "id", "-u") == (0, "10001\n")
    for path in ("/file", "/opt/eddyline/file", "/etc/file", "/keys/file", "/var/lib/file"):
        code, said = cluster.inside(role, "touch", path)
        assert code != 0, path
        assert "Read-only" in said or "Permission denied" in said
    assert cluster.inside(role, "touch", "/tmp/file") == (0, "")
    host = cluster.container(role).attrs["HostConfig"]
    assert host["CapDrop"] == ["ALL"]
    assert host["ReadonlyRootfs"]
    assert "no-new-privileges:true" in host["SecurityOpt"]


@pytest.mark.parametrize("role", ROLES)
async def test_image_has_what_its_role_imports_and_nothing_else(cluster: Composed, role: str) -> None:
    for module in NOT_FOR[role]:
        code, _ = cluster.inside(role, "python", "-c", f"import {module}")
        assert code == 1, f"{role} has {module}"
    image = engine().images.get(f"eddyline-{role}:{TAG}")
    sys.stderr.write(f"compose test: eddyline-{role} is {image.attrs['Size'] / 1e6:.0f} MB\n")


async def test_every_query_has_data_on_an_idle_cluster_and_no_alert_fires(cluster: Composed, built: Images) -> None:
    if "prometheus" in built.missing:
        pytest.skip(f"there is no Prometheus: {built.missing['prometheus']}")
    for role in ROLES:
        await cluster.prometheus_has(f"count_over_time(eddyline_{role}_ready[1m]) >= 3")
    for path in sorted((CHART / "dashboards").glob("*.json")):
        for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]:
            for target in panel["targets"]:
                # As Grafana asks while all namespaces are chosen; without TLS there is no certificate to show
                if panel["title"] != "Certificate":
                    await cluster.prometheus_has(target["expr"].replace("$namespace", ".*"))
    named = {rule["alert"] for group in rule_groups() for rule in group["rules"]}
    rules = await cluster.judged_rules()
    assert {rule["name"]: rule["health"] for rule in rules} == dict.fromkeys(named, "ok")
    assert not [rule["name"] for rule in rules if rule["state"] == "firing"]


def rule_groups() -> list[dict[str, Any]]:
    loaded: list[dict[str, Any]] = yaml.safe_load((CHART / "alerts/eddyline.yaml").read_text(encoding="utf-8"))[
        "groups"
    ]
    return loaded


async def test_metrics_are_for_those_who_bring_the_key(cluster: Composed) -> None:
    code, key = cluster.inside("store", "cat", "/keys/metrics.key")
    assert code == 0
    for role in ROLES:
        address = cluster.address(f"{role}-metrics")
        assert (await http_get(address))[0] == 401
        request = f"GET /metrics HTTP/1.1\r\nAuthorization: Bearer {key.strip()}\r\n\r\n"
        status, body = await http_get(address, request.encode())
        assert status == 200
        check_complete(Scrape(body), role)
        assert (await http_get(address, b"GET /live HTTP/1.1\r\n\r\n"))[0] == 200


async def test_caller_without_a_key_is_refused(cluster: Composed) -> None:
    async with CallerAccess().open_channel(cluster.address("store")) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await topic_pb2_grpc.TopicServiceStub(channel).ListTopics(topic_pb2.ListTopicsRequest())
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_what_is_put_into_a_bucket_is_read_at_the_store_and_watched_at_delivery(cluster: Composed) -> None:
    access = owner(cluster)
    writer = await nats.connect(f"nats://{cluster.address('nats')}")
    try:
        bucket = await writer.jetstream().create_key_value(bucket="orders", history=8)
        await bucket.put("17", b"paid")
    finally:
        await writer.close()
    definition = apply_pb2.SourceDefinition(name="orders", topic="orders", bucket="orders")
    async with access.open_channel(cluster.address("ingest")) as channel:
        await source_pb2_grpc.SourceServiceStub(channel).CreateSource(
            source_pb2.CreateSourceRequest(definition=definition)
        )
    async with access.open_channel(cluster.address("delivery")) as channel:
        topic = delivery_pb2.WatchTopic(topic="orders", point=delivery_pb2.START_POINT_EARLIEST)
        watch = delivery_pb2_grpc.DeliveryServiceStub(channel).WatchTopics(
            delivery_pb2.WatchTopicsRequest(topics=[topic])
        )
        async for frame in watch:
            if found := [(record.key, record.data) for record in frame.rows.records]:
                break
    assert found == [(b"17", b"paid")]


async def test_client_of_the_host_goes_on_by_published_ports(
    cluster: Composed,
) -> None:
    published = tuple(cluster.address(role) for role in ROLES)
    async with connect(published[0], access=owner(cluster)) as client:
        topology = client.topology
        assert (topology.stores, topology.ingests, topology.deliveries) == tuple((one,) for one in published)
        assert {role.role for role in await client.statuses() if role.reachable} == set(ROLES)
        await client.append("from-outside", [Record(data=b"1")], create=Kind.LOG)


async def test_command_runs_in_the_network_with_the_owners_key(cluster: Composed) -> None:
    cluster.compose("--profile", "tools", "up", "--detach", "--build", "tools")
    code, said = cluster.inside("tools", "eddyline", "status", "-o", "json")
    assert code == 0, said
    assert "store:7701" in said
    code, said = cluster.inside("tools", "eddyline", "topic", "create", "made-inside", "--kind", "log")
    assert code == 0, said


async def test_acknowledged_records_are_there_after_the_store_was_killed(cluster: Composed) -> None:
    access = owner(cluster)
    async with access.open_channel(cluster.address("store")) as channel:
        topic = topic_pb2.Topic(name="log", kind=topic_pb2.TOPIC_KIND_LOG)
        await topic_pb2_grpc.TopicServiceStub(channel).CreateTopic(topic_pb2.CreateTopicRequest(topic=topic))
        rows = types_pb2.RecordBatch(records=[types_pb2.Record(data=b"%d" % number) for number in range(100)])
        await log_pb2_grpc.LogServiceStub(channel).AppendRecords(log_pb2.AppendRecordsRequest(topic="log", rows=rows))
    store = cluster.container("store")
    store.kill()
    store.start()
    await cluster.healthy(*ROLES)
    async with access.open_channel(cluster.address("store")) as channel:
        request = log_pb2.ReadRecordsRequest(topic="log", limit=1_000)
        read = await log_pb2_grpc.LogServiceStub(channel).ReadRecords(request)
        assert [record.data for item in read.items for record in item.rows.records] == [
            b"%d" % number for number in range(100)
        ]
        entry = await fold_pb2_grpc.FoldServiceStub(channel).GetEntry(
            fold_pb2.GetEntryRequest(topic="orders", key=b"17")
        )
        assert entry.entry.data == b"paid"


async def test_store_that_is_stopped_ends_clean_within_its_grace(cluster: Composed) -> None:
    cluster.compose("stop", "store")
    state = cluster.container("store").attrs["State"]
    assert state["ExitCode"] == 0
    assert b"stopped" in cluster.container("store").logs()
    ready = await http_get(cluster.address("ingest-metrics"), b"GET /ready HTTP/1.1\r\n\r\n")
    assert ready[0] in (200, 503)
    cluster.compose("start", "store")
    await cluster.healthy(*ROLES)
