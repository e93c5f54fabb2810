"""The chart: what Helm 3 and 4 make of several value sets, and whether Kubernetes and our roles take it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

import kubernetes_validate
import pytest
import yaml

from eddyline.cli.local_cluster.find import ADDRESS_VARIABLE
from eddyline.client.transport.access import ENVIRONMENT
from eddyline.core.runtime.settings import COMMON_PREFIX, CommonSettings, load_settings
from eddyline.delivery.config import DeliverySettings
from eddyline.ingest.config import IngestSettings
from eddyline.ingest.sources.sources_file import parse_sources
from eddyline.store.config import MEMORY_BYTES, StoreSettings
from tests.support.kubernetes.helm import CHART, PACKED, HelmFailed, Manifest, environ, of_kind, pods, rendered, run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from eddyline.core.runtime.settings import SettingsClass

SETTINGS: Mapping[str, type[SettingsClass]] = {
    "store": StoreSettings,
    "ingest": IngestSettings,
    "delivery": DeliverySettings,
}
VALUE_SETS = {"default": (), **{path.stem: (path,) for path in sorted((CHART / "ci").glob("*.yaml"))}}
KUBERNETES = ("1.27", "1.37")
"""The oldest that the chart's kubeVersion takes, and the newest whose schemas there are."""
OPERATOR_KINDS = ("ServiceMonitor", "PrometheusRule")
"""Of the Prometheus operator: Kubernetes itself has no schema for them."""
CLIENTS = ("spark", "tools")
"""Pods that call the cluster and serve nothing."""
OF_PARENTS = {"global", "enabled"}
"""Values that come from a parent chart alone."""


@cache
def chart(values: str, major: int = 4) -> tuple[Manifest, ...]:
    return tuple(rendered(major, values=VALUE_SETS[values]))


def everything(*paths: str) -> Iterator[tuple[str, object]]:
    """Every leaf of all manifests of all value sets, with its path."""

    def leaves(node: object, path: str) -> Iterator[tuple[str, object]]:
        if isinstance(node, Mapping):
            for key, below in node.items():
                yield from leaves(below, f"{path}.{key}")
        elif isinstance(node, list):
            for below in node:
                yield from leaves(below, path)
        else:
            yield path, node

    for values in VALUE_SETS:
        for manifest in chart(values):
            for path, leaf in leaves(manifest, manifest["kind"]):
                if not paths or path.endswith(paths):
                    yield path, leaf


@pytest.mark.parametrize("major", PACKED)
@pytest.mark.parametrize("values", VALUE_SETS)
def test_chart_is_clean_to_helms_own_lint(values: str, major: int) -> None:
    run(major, "lint", "--strict", "--quiet", str(CHART), *(f"--values={path}" for path in VALUE_SETS[values]))


@pytest.mark.parametrize("values", VALUE_SETS)
def test_both_helms_make_the_same_of_it(values: str) -> None:
    assert chart(values, 3) == chart(values, 4)


@pytest.mark.parametrize("kubernetes", KUBERNETES)
@pytest.mark.parametrize("values", VALUE_SETS)
def test_kubernetes_schemas_take_every_manifest(values: str, kubernetes: str) -> None:
    for manifest in chart(values):
        if manifest["kind"] not in OPERATOR_KINDS:
            kubernetes_validate.validate(manifest, kubernetes, strict=True)


def test_every_template_is_rendered_by_some_value_set() -> None:
    kinds = {manifest["kind"] for values in VALUE_SETS for manifest in chart(values)}
    text = "".join(path.read_text(encoding="utf-8") for path in (CHART / "templates").glob("*.yaml"))
    assert kinds == set(re.findall(r"^kind: (\w+)$", text, re.MULTILINE))


@pytest.mark.parametrize("role", SETTINGS)
@pytest.mark.parametrize("values", VALUE_SETS)
def test_role_takes_every_setting_that_the_chart_gives_it(values: str, role: str) -> None:
    (pod,) = [pod for component, pod in pods(chart(values)) if component == role]
    variables = environ(pod)
    common = load_settings(CommonSettings, prefix=COMMON_PREFIX, environ=variables)
    load_settings(SETTINGS[role], prefix=f"EDDYLINE_{role.upper()}_", environ=variables)
    assert "-store-0." in common.store_addresses[0]
    assert not [name for name in variables if name.startswith("EDDYLINE_") and not name.startswith(_prefixes(role))]


def _prefixes(role: str) -> tuple[str, str]:
    return COMMON_PREFIX, f"EDDYLINE_{role.upper()}_"


def test_every_store_s_address_is_reported_in_order_and_its_pod_s_name_states_which_it_is() -> None:
    manifests = rendered(sets=["store.shards=3"])
    (stateful,) = of_kind(manifests, "StatefulSet")
    name = stateful["metadata"]["name"]
    assert stateful["spec"]["replicas"] == 3
    for component, pod in pods(manifests):
        if component in SETTINGS:
            common = load_settings(CommonSettings, prefix=COMMON_PREFIX, environ=environ(pod))
            hosts = [address.partition(".")[0] for address in common.store_addresses]
            assert hosts == [f"{name}-{shard}" for shard in range(3)]
            assert [StoreSettings(shard_index=host).shard for host in hosts] == [0, 1, 2]


@pytest.mark.parametrize("values", VALUE_SETS)
def test_addresses_of_roles_are_those_of_the_services(values: str) -> None:
    services = {manifest["metadata"]["name"]: manifest["spec"] for manifest in of_kind(chart(values), "Service")}
    (stateful,) = of_kind(chart(values), "StatefulSet")
    for component, pod in pods(chart(values)):
        variables = environ(pod)
        if component in CLIENTS:
            stores = variables["EDDYLINE_ADDRESS"].split(",")
            assert len(stores) == stateful["spec"]["replicas"]
            assert {address.split(".")[1] for address in stores} <= set(services)
            continue
        for role, port in {"STORE": 7701, "INGEST": 7702, "DELIVERY": 7703}.items():
            for address in variables[f"EDDYLINE_COMMON_{role}_ADDRESSES"].split(","):
                host, _, told = address.rpartition(":")
                service = services[host.split(".")[1 if role == "STORE" else 0]]
                assert int(told) == port
                assert port in [entry["port"] for entry in service["ports"]]
                assert host.endswith(".streams.svc.cluster.local")
    assert stateful["spec"]["serviceName"] in services
    assert services[stateful["spec"]["serviceName"]]["clusterIP"] == "None"


def test_pods_of_each_role_spread_over_nodes_unless_values_place_them() -> None:
    for role, pod in pods(chart("default")):
        (spread,) = pod["topologySpreadConstraints"]
        assert spread["whenUnsatisfiable"] == "ScheduleAnyway"
        assert spread["labelSelector"]["matchLabels"]["app.kubernetes.io/component"] == role
    placed = {role for role, pod in pods(chart("everything")) if "affinity" in pod}
    spreads = {role for role, pod in pods(chart("everything")) if "topologySpreadConstraints" in pod}
    assert placed == {"delivery"}
    assert spreads == {"store", "ingest"}


@pytest.mark.parametrize("values", VALUE_SETS)
def test_selectors_find_the_pods_that_are_meant(values: str) -> None:
    manifests = chart(values)
    labels = [
        manifest["spec"]["template"]["metadata"]["labels"]
        for kind in ("StatefulSet", "Deployment")
        for manifest in of_kind(manifests, kind)
    ]
    for kind in ("Service", "PodDisruptionBudget", "StatefulSet", "Deployment"):
        for manifest in of_kind(manifests, kind):
            wanted = manifest["spec"]["selector"]
            wanted = wanted.get("matchLabels", wanted)
            found = [set_of for set_of in labels if wanted.items() <= set_of.items()]
            assert len(found) == 1, manifest["metadata"]["name"]
            assert found[0]["app.kubernetes.io/component"] in manifest["metadata"]["name"]


@pytest.mark.parametrize("values", VALUE_SETS)
def test_no_container_may_more_than_it_needs(values: str) -> None:
    seen = 0
    for _, pod in pods(chart(values)):
        (container,) = pod["containers"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["automountServiceAccountToken"] is False
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["limits"]["memory"]
        assert "/tmp" in [mount["mountPath"] for mount in container["volumeMounts"]]
        seen += 1
    assert seen >= len(SETTINGS)


@pytest.mark.parametrize("values", VALUE_SETS)
def test_liveness_asks_nothing_but_whether_the_process_answers(values: str) -> None:
    for role, pod in pods(chart(values)):
        (container,) = pod["containers"]
        if role in CLIENTS:
            assert "livenessProbe" not in container
            continue
        probes = {name: container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "liveness", "readiness")}
        assert probes == {"startup": "/started", "liveness": "/live", "readiness": "/ready"}
        asked = [container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")]
        assert {get["port"] for get in asked} == {"metrics"}
        scheme = "HTTPS" if "EDDYLINE_COMMON_TLS_CERT" in environ(pod) else "HTTP"
        assert {get.get("scheme", "HTTP") for get in asked} == {scheme}


@pytest.mark.parametrize("values", VALUE_SETS)
def test_pod_has_time_to_drain_before_it_is_killed(values: str) -> None:
    for role, pod in pods(chart(values)):
        if role in CLIENTS:
            continue
        (container,) = pod["containers"]
        command, seconds = container["lifecycle"]["preStop"]["exec"]["command"]
        assert command == "sleep"
        settings = load_settings(SETTINGS[role], prefix=f"EDDYLINE_{role.upper()}_", environ=environ(pod))
        assert isinstance(settings, (StoreSettings, IngestSettings, DeliverySettings))
        assert pod["terminationGracePeriodSeconds"] > int(seconds) + settings.stop_grace_ms / 1000 + 5


def test_default_budget_is_the_stores_own() -> None:
    (pod,) = [pod for role, pod in pods(chart("default")) if role == "store"]
    assert int(environ(pod)["EDDYLINE_STORE_MEMORY_BYTES"]) == MEMORY_BYTES


def test_secrets_are_named_and_never_made() -> None:
    for values in VALUE_SETS:
        assert not of_kind(chart(values), "Secret")
    secrets = {
        leaf
        for _, leaf in everything(".secret.secretName", ".secretKeyRef.name", ".credentials.name", ".ca.secret.name")
    }
    assert secrets == {"eddyline-access", "keys", "certificates", "nats-creds", "nats-nkey", "nats-tls", "s3"}


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("store.shard=2", "shard"),
        ("store.shards=65", "shards"),
        ("store.shards=0", "shards"),
        ("nats.url=nats://me:secret@nats:4222", "nats"),
        ("store.env[0].name=AWS_SECRET_ACCESS_KEY,store.env[0].value=x", "env"),
        ("store.settings.listen=x", "listen"),
        ("store.memoryBytes=1000", "memoryBytes"),
        ("store.storage.accessModes[0]=ReadWriteMany", "accessModes"),
        ("delivery.replicas=0", "replicas"),
        ("delivery.advertised[0]=watch.example.com", "advertised"),
        ("networkPolicy.clients=null", "clients"),
        ("metrics.otlpUrl=collector:4317", "otlpUrl"),
        ("metrics.rules.matchers=namespace", "matchers"),
        ("access.secret=", "secret"),
        ("access.tls.mutual=true", r"access\.tls\.secret"),
        ("access.tls.bundle=authorities", r"access\.tls\.secret"),
        ("nats.tls.clientCertificate=true", r"nats\.tls\.secret"),
        ("nats.nkeySecret=a,nats.credsSecret=b", "nkeySecret"),
        ("nats.inboxPrefix=_INBOX.>", "inboxPrefix"),
        ("ingest.autoscaling.enabled=true,ingest.autoscaling.minReplicas=9", "minReplicas"),
    ],
)
def test_value_that_is_wrong_is_refused_by_its_name(value: str, why: str) -> None:
    with pytest.raises(HelmFailed, match=why):
        rendered(sets=[value])


def test_schema_knows_every_value_and_no_other() -> None:
    schema = yaml.safe_load((CHART / "values.schema.json").read_text(encoding="utf-8"))
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))

    def same(properties: Mapping[str, Manifest], found: Mapping[str, object], path: str) -> None:
        assert set(properties) - (OF_PARENTS if path == "values" else set()) == set(found), path
        for name, below in found.items():
            # Settings are the roles' own: test_chart_settings.py
            if name != "settings" and isinstance(below, Mapping) and "properties" in properties[name]:
                same(properties[name]["properties"], below, f"{path}.{name}")

    same(schema["properties"], values, "values")


def test_sources_file_is_one_that_ingest_takes() -> None:
    (found,) = [one for one in of_kind(chart("everything"), "ConfigMap") if "sources.toml" in one["data"]]
    assert [definition.name for definition in parse_sources(found["data"]["sources.toml"], "chart")] == ["orders"]


def test_changed_sources_restart_ingest_and_nothing_else_does() -> None:
    def templates(*sets: str) -> dict[str, Manifest]:
        made = rendered(sets=sets)
        kinds = (*of_kind(made, "StatefulSet"), *of_kind(made, "Deployment"))
        return {one["metadata"]["labels"]["app.kubernetes.io/component"]: one["spec"]["template"] for one in kinds}

    before, after = templates(), templates(*(f"ingest.sources[0].{field}=x" for field in ("name", "topic", "bucket")))
    assert {role for role in before if before[role] != after[role]} == {"ingest"}


def test_replicas_are_the_autoscalers_where_there_is_one() -> None:
    scaled = {
        manifest["spec"]["scaleTargetRef"]["name"]
        for manifest in of_kind(chart("everything"), "HorizontalPodAutoscaler")
    }
    deployments = [one for one in of_kind(chart("everything"), "Deployment") if "-tools" not in one["metadata"]["name"]]
    assert {one["metadata"]["name"] for one in deployments} == scaled
    assert not [one for one in deployments if "replicas" in one["spec"]]
    assert all("replicas" in one["spec"] for one in of_kind(chart("default"), "Deployment"))


@pytest.mark.parametrize("shards", [1, 3])
def test_network_lets_in_who_is_named_and_out_to_what_is_needed(shards: int) -> None:
    made = rendered(values=VALUE_SETS["everything"], sets=[f"store.shards={shards}"])
    policies = {
        one["metadata"]["labels"]["app.kubernetes.io/component"]: one["spec"] for one in of_kind(made, "NetworkPolicy")
    }
    assert set(policies) == {"store", "ingest", "delivery", "spark", "tools"}
    for role, policy in policies.items():
        assert policy["policyTypes"] == ["Ingress", "Egress"]
        assert all("from" in rule for rule in policy["ingress"]), "a rule without from lets everybody in"
        out = {port["port"] for rule in policy["egress"] for port in rule["ports"]}
        if role not in CLIENTS:
            callers = [
                peer["podSelector"]["matchLabels"] for peer in policy["ingress"][0]["from"] if "podSelector" in peer
            ]
            assert "tools" in [labels["app.kubernetes.io/component"] for labels in callers]
        stores = {7701} if role != "store" or shards > 1 else set()
        of_role = {"ingest": {4222, 4317}, "spark": set(), "tools": {7702, 7703}}.get(role, {4317})
        assert out == {53, 443} | stores | of_role


def test_monitor_scrapes_each_role_with_the_key_that_roles_ask_for() -> None:
    (monitor,) = of_kind(chart("monitored"), "ServiceMonitor")
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["authorization"]["credentials"] == {"name": "eddyline-access", "key": "metrics.key"}
    services = of_kind(chart("monitored"), "Service")
    assert len(services) == 3
    for service in services:
        assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
        assert endpoint["port"] in [port["name"] for port in service["spec"]["ports"]]
    for role, pod in pods(chart("monitored")):
        assert environ(pod)["EDDYLINE_COMMON_METRICS_KEY_FILE"].endswith("/metrics.key"), role


def test_monitor_verifies_what_roles_show_where_there_is_tls() -> None:
    (monitor,) = of_kind(chart("monitored"), "ServiceMonitor")
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["scheme"] == "https"
    assert endpoint["tlsConfig"]["ca"]["secret"] == {"name": "certificates", "key": "ca.crt"}
    for role, pod in pods(chart("monitored")):
        addresses = environ(pod)["EDDYLINE_COMMON_INGEST_ADDRESSES"]
        assert endpoint["tlsConfig"]["serverName"] == addresses.rpartition(":")[0], role
    own = "metrics.serviceMonitor.tlsConfig.insecureSkipVerify=true"
    (monitor,) = of_kind(rendered(values=VALUE_SETS["monitored"], sets=[own]), "ServiceMonitor")
    assert monitor["spec"]["endpoints"][0]["tlsConfig"] == {"insecureSkipVerify": True}
    plain = ["metrics.serviceMonitor.enabled=true"]
    (monitor,) = of_kind(rendered(sets=plain), "ServiceMonitor")
    assert not {"scheme", "tlsConfig"} & set(monitor["spec"]["endpoints"][0])


def test_bundle_of_authorities_goes_before_the_one_of_the_secret() -> None:
    bundled = rendered(values=VALUE_SETS["monitored"], sets=["access.tls.bundle=authorities", "access.tls.mutual=true"])
    (monitor,) = of_kind(bundled, "ServiceMonitor")
    ca = monitor["spec"]["endpoints"][0]["tlsConfig"]["ca"]
    assert ca == {"configMap": {"name": "authorities", "key": "ca.crt"}}
    for role, pod in pods(bundled):
        variables = environ(pod)
        (path,) = {variables["EDDYLINE_COMMON_TLS_CA"], variables["EDDYLINE_COMMON_TLS_CLIENT_CA"]}
        (mount,) = [
            mount
            for mount in pod["containers"][0]["volumeMounts"]
            if mount["mountPath"] == path.removesuffix("/ca.crt")
        ]
        (volume,) = [volume for volume in pod["volumes"] if volume["name"] == mount["name"]]
        assert volume["configMap"]["name"] == "authorities", role
    for role, pod in pods(chart("everything")):
        if role == "spark":
            assert environ(pod)["EDDYLINE_TLS_CA"].startswith("/etc/eddyline/authorities/")


def test_certificates_are_mounted_so_that_a_renewed_one_arrives() -> None:
    for _, pod in pods(chart("monitored")):
        mounts = [mount for mount in pod["containers"][0]["volumeMounts"] if mount["name"] in ("tls", "access")]
        assert mounts
        assert not [mount for mount in mounts if "subPath" in mount], "such a file is never brought up to date"


@pytest.mark.parametrize("values", VALUE_SETS)
def test_file_that_a_setting_names_is_mounted(values: str) -> None:
    for role, pod in pods(chart(values)):
        (container,) = pod["containers"]
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        mounts = {
            mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"] if mount["name"] != "data"
        }
        files = {value for value in environ(pod).values() if value.startswith("/etc/")}
        assert files, role
        for file in files:
            folder, _, name = file.rpartition("/")
            items = mounts[folder].get("secret", {}).get("items")
            assert items is None or name in [item["path"] for item in items], file


def test_job_has_its_own_key_and_not_the_roles() -> None:
    jobs = [pod for role, pod in pods(chart("everything")) if role == "spark"]
    assert len(jobs) == 2
    for pod in jobs:
        (access,) = [volume for volume in pod["volumes"] if volume["name"] == "access"]
        assert [item["key"] for item in access["secret"]["items"]] == ["spark.key"]
        unknown = {name for name in environ(pod) if name.startswith("EDDYLINE_")} - {
            ADDRESS_VARIABLE,
            *ENVIRONMENT.values(),
        }
        assert not unknown


def test_dashboards_are_the_files() -> None:
    (shown,) = [one for one in of_kind(chart("monitored"), "ConfigMap") if "dashboards" in one["metadata"]["name"]]
    files: dict[str, Path] = {f"eddyline-{path.name}": path for path in (CHART / "dashboards").glob("*.json")}
    assert shown["data"] == {name: path.read_text(encoding="utf-8") for name, path in files.items()}


def test_job_that_the_values_show_is_one_that_is_tested() -> None:
    text = (CHART / "values.yaml").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^  jobs: \[\]\n((?:  #   .*\n|  # - .*\n)+)", text, re.MULTILINE)
    (job,) = yaml.safe_load(shown.replace("  # ", ""))
    tested = yaml.safe_load((CHART / "ci/everything.yaml").read_text(encoding="utf-8"))["spark"]["jobs"]
    assert job in tested


def test_job_without_a_schedule_is_a_template_that_never_runs_by_itself() -> None:
    jobs = {one["metadata"]["name"]: one["spec"] for one in of_kind(chart("everything"), "CronJob")}
    assert {name: spec["suspend"] for name, spec in jobs.items()} == {
        "history-spark-export-orders": False,
        "history-spark-audit": True,
    }
    assert {spec["concurrencyPolicy"] for spec in jobs.values()} == {"Forbid"}
