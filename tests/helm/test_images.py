"""Dockerfiles and docker-compose.yml as they stand: what they promise without an engine to run them."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import tomllib
from fnmatch import fnmatch
from typing import TYPE_CHECKING

import pytest
import yaml

from eddyline.cli.local_cluster.find import ADDRESS_VARIABLE
from eddyline.client.transport.access import ENVIRONMENT
from eddyline.core.make_keys import new_files
from eddyline.core.runtime.settings import COMMON_PREFIX, CommonSettings, load_settings
from eddyline.delivery.config import DeliverySettings
from eddyline.ingest.config import IngestSettings
from eddyline.store.config import StoreSettings
from tests.support.kubernetes.helm import CHART, ROOT, Manifest

if TYPE_CHECKING:
    from eddyline.core.runtime.settings import SettingsClass

SERVERS: dict[str, type[SettingsClass]] = {
    "store": StoreSettings,
    "ingest": IngestSettings,
    "delivery": DeliverySettings,
}
MEMBERS = {role: f"services/{role}" for role in (*SERVERS, "spark")} | {"tools": "libs/cli"}
"""The packages in an image, by its name."""


def dockerfile(image: str) -> str:
    return (ROOT / MEMBERS[image] / "Dockerfile").read_text(encoding="utf-8")


def is_sent(path: str) -> bool:
    """Whether .dockerignore lets a build have it: the last pattern that covers a path holds."""
    sent = True
    for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines():
        pattern = line.removeprefix("!")
        if not pattern or pattern.startswith("#"):
            continue
        anywhere = pattern.startswith("**/")
        parts = path.split("/") if anywhere else [path]
        name = pattern.removeprefix("**/")
        if pattern == "*" or any(fnmatch(part, name) or part.startswith(f"{name}/") for part in parts):
            sent = line.startswith("!")
    return sent


def compose() -> Manifest:
    loaded: Manifest = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    return loaded


def composed_environ(role: str, **variables: str) -> dict[str, str]:
    """A service's environment, as compose makes it of these variables."""

    def value(text: str) -> str:
        return re.sub(r"\$\{(\w+):-([^}]*)\}", lambda found: variables.get(found[1], found[2]), text)

    return {name: value(str(text)) for name, text in compose()["services"][role]["environment"].items()}


def own_dependencies(member: str) -> set[str]:
    """Our packages that a member names, and those that the extras it asks for name."""
    found: set[str] = set()
    for requirement in project_of(member)["dependencies"]:
        named = re.match(r"eddyline-(\w+)(?:\[([\w,]+)\])?", requirement)
        if named is None:
            continue
        found.add(named[1])
        extras = project_of(f"libs/{named[1]}").get("optional-dependencies", {})
        of_extras = [one for extra in (named[2] or "").split(",") if extra for one in extras[extra]]
        found |= {one[1] for one in map(re.compile(r"eddyline-(\w+)").match, of_extras) if one is not None}
    return found


def project_of(member: str) -> Manifest:
    loaded: Manifest = tomllib.loads((ROOT / member / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return loaded


@pytest.mark.parametrize("image", MEMBERS)
def test_image_is_made_of_its_own_parts_and_of_pinned_packages(image: str) -> None:
    text, member = dockerfile(image), MEMBERS[image]
    copied = set(re.findall(r"^COPY ((?:libs|services)/\w+) /src/\1$", text, re.MULTILINE))
    assert copied == {member, *(f"libs/{name}" for name in own_dependencies(member))}
    assert "-c /src/wheels/constraints.txt" in text


@pytest.mark.parametrize("image", MEMBERS)
def test_build_is_sent_what_it_copies_and_what_its_packages_name(image: str) -> None:
    for member in re.findall(r"^COPY ((?:libs|services)/\w+) ", dockerfile(image), re.MULTILINE):
        project = project_of(member)
        readme = project.get("readme", "pyproject.toml")
        named = ["pyproject.toml", "eddyline", readme if isinstance(readme, str) else readme["file"]]
        assert not [name for name in named if not is_sent(f"{member}/{name}")], member
        assert not is_sent(f"{member}/Dockerfile")
    assert is_sent("constraints.txt")
    assert not is_sent("tests/conftest.py")


@pytest.mark.parametrize("role", MEMBERS)
def test_image_has_two_stages_of_one_base_and_runs_without_a_user(role: str) -> None:
    text = dockerfile(role)
    assert re.findall(r"^FROM (.*)$", text, re.MULTILINE) == ["${BASE} AS build", "${BASE}"]
    assert re.search(r"^ARG BASE=python:3\.11-slim$", text, re.MULTILINE)
    assert "USER 10001:10001" in text.split("FROM ${BASE}\n")[1]
    assert "# syntax" not in text
    assert re.search(r"^HEALTHCHECK ", text, re.MULTILINE)


@pytest.mark.parametrize("role", SERVERS)
def test_images_settings_are_the_roles_and_its_ports_the_charts(role: str) -> None:
    text = dockerfile(role)
    environ = dict(re.findall(r"\b(EDDYLINE_\w+)=(\S+)", text))
    load_settings(SERVERS[role], prefix=f"EDDYLINE_{role.upper()}_", environ=environ)
    listens = {field.name: str(field.default) for field in dataclasses.fields(SERVERS[role]) if field.name == "listen"}
    port = int(listens["listen"].rpartition(":")[2])
    (exposed,) = re.findall(r"^EXPOSE (.*)$", text, re.MULTILINE)
    assert exposed.split() == [str(port), str(port + 10)]
    assert environ[f"EDDYLINE_{role.upper()}_METRICS_LISTEN"] == f"127.0.0.1:{port + 10}"


def test_every_dockerfile_is_of_an_image_that_is_tested_here() -> None:
    found = {str(path.parent.relative_to(ROOT)) for path in ROOT.glob("[ls]*s/*/Dockerfile")}
    assert found == set(MEMBERS.values())


def test_make_builds_each_image_from_its_dockerfile() -> None:
    done = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", "images", "BASE=base:1", "SPARK_BASE=java:1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    text = done.stdout.replace("\\\n", " ")
    built = {
        found[3]: (found[1], found[2])
        for found in re.finditer(r"BASE=(\S+)\s+--file (\S+) --tag eddyline-(\w+):", text)
    }
    assert built == {
        image: ("java:1" if image == "spark" else "base:1", f"{member}/Dockerfile") for image, member in MEMBERS.items()
    }


def test_composed_command_finds_the_cluster_and_shows_a_key_that_is_made() -> None:
    service = compose()["services"]["tools"]
    environ = {name: str(value) for name, value in service["environment"].items()}
    roles = {address.rpartition(":")[0]: address for address in environ[ADDRESS_VARIABLE].split(",")}
    common = load_settings(CommonSettings, prefix=COMMON_PREFIX, environ=composed_environ("store"))
    own = (*common.store_addresses, *common.ingest_addresses, *common.delivery_addresses)
    assert set(roles.values()) == set(own), "names of the network: it is told names of the network"
    assert set(environ) <= {ADDRESS_VARIABLE, *ENVIRONMENT.values()}
    folder, _, file = environ[ENVIRONMENT["key_file"]].rpartition("/")
    assert f"keys:{folder}:ro" in service["volumes"]
    assert file in new_files()
    assert service["profiles"] == ["tools"]


@pytest.mark.parametrize("role", SERVERS)
def test_composed_role_takes_its_settings(role: str) -> None:
    environ = composed_environ(role)
    common = load_settings(CommonSettings, prefix=COMMON_PREFIX, environ=environ)
    load_settings(SERVERS[role], prefix=f"EDDYLINE_{role.upper()}_", environ=environ)
    assert common.keys_file
    assert common.metrics_key_file
    assert {name.split("_")[1] for name in environ} == {"COMMON", role.upper()}


@pytest.mark.parametrize(
    "variables",
    [{}, {"STORE_PORT": "17701", "INGEST_PORT": "17702", "DELIVERY_PORT": "17703", "ADVERTISED_HOST": "box"}],
)
@pytest.mark.parametrize("role", SERVERS)
def test_clients_of_the_host_get_the_ports_that_are_published(role: str, variables: dict[str, str]) -> None:
    common = load_settings(CommonSettings, prefix=COMMON_PREFIX, environ=composed_environ(role, **variables))
    for name, told, inside in (
        ("store", common.store_advertised_addresses, common.store_addresses),
        ("ingest", common.ingest_advertised_addresses, common.ingest_addresses),
        ("delivery", common.delivery_advertised_addresses, common.delivery_addresses),
    ):
        (address,), (own,) = told, inside
        host, _, port = address.rpartition(":")
        assert host == variables.get("ADVERTISED_HOST", "127.0.0.1")
        first, *_ = compose()["services"][name]["ports"]
        published = re.sub(r"\$\{(\w+):-(\d+)\}", lambda found: variables.get(found[1], found[2]), first)
        assert published == f"127.0.0.1:{port}:{own.rpartition(':')[2]}"
        assert own.rpartition(":")[0] == name, "a service's name in its network"


def test_composed_roles_may_no_more_than_they_need() -> None:
    for role in (*SERVERS, "keys", "tools"):
        service = compose()["services"][role]
        assert service["read_only"] is True, role
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]


def test_ports_are_published_on_loopback_alone() -> None:
    for name, service in compose()["services"].items():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name


def test_prometheus_scrapes_every_role_with_its_key_and_loads_the_charts_rules() -> None:
    config = yaml.safe_load((ROOT / "helm/compose/prometheus.yml").read_text(encoding="utf-8"))
    (job,) = config["scrape_configs"]
    (group,) = job["static_configs"]
    services = compose()["services"]
    for target in group["targets"]:
        role, _, port = target.partition(":")
        assert services[role]["environment"][f"EDDYLINE_{role.upper()}_METRICS_LISTEN"] == f"0.0.0.0:{port}"
    assert len(group["targets"]) == len(SERVERS)
    mounted = dict(volume.split(":")[:2] for volume in services["prometheus"]["volumes"])
    assert mounted["./helm/eddyline/alerts"] == config["rule_files"][0].rpartition("/")[0]
    assert job["authorization"]["credentials_file"].rpartition("/")[0] == mounted["keys"]
    assert (CHART / "alerts/eddyline.yaml").exists()


def test_every_variable_of_the_compose_file_is_documented_at_its_head() -> None:
    head, _, rest = (ROOT / "docker-compose.yml").read_text(encoding="utf-8").partition("\n\n")
    assert set(re.findall(r"\$\{(\w+)", rest)) <= set(re.findall(r"\b[A-Z_]+\b", head))


def test_every_folder_that_is_mounted_is_there() -> None:
    for service in compose()["services"].values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert (ROOT / source).exists() if source.startswith("./") else source in compose()["volumes"]
