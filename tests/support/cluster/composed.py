"""docker-compose.yml as a running cluster of a test's own, through testcontainers: project, ports and volumes apart."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final
from urllib.error import URLError
from urllib.parse import quote
from urllib.request import urlopen

from testcontainers.compose import DockerCompose

from tests.support.cluster.container_engine import ROOT, Images, compose_command, engine
from tests.support.cluster.processes import free_address

if TYPE_CHECKING:
    from collections.abc import Iterator

    from docker.models.containers import Container

PORTS: Final = {
    "STORE_PORT": "store",
    "INGEST_PORT": "ingest",
    "DELIVERY_PORT": "delivery",
    "NATS_PORT": "nats",
    "PROMETHEUS_PORT": "prometheus",
    "STORE_METRICS_PORT": "store-metrics",
    "INGEST_METRICS_PORT": "ingest-metrics",
    "DELIVERY_METRICS_PORT": "delivery-metrics",
}
ROLES: Final = ("store", "ingest", "delivery")
HEALTHY_SECONDS_MAX: Final = 180
TAG: Final = "under-test"


class Composed(DockerCompose):
    """The compose project of one test; `environ` is what its variables are."""

    def __init__(self, project: str, environ: dict[str, str], services: list[str]) -> None:
        super().__init__(context=str(ROOT), build=True, wait=False, services=services)
        self.project = project
        self.environ = environ

    @cached_property
    def compose_command_property(self) -> list[str]:
        return [*compose_command(), "--project-name", self.project, "-f", "docker-compose.yml"]

    def stop(self, down: bool = True) -> None:
        """End the whole project, also what it has beside `services`."""
        self.compose("down", "--volumes", "--remove-orphans", "--timeout", "30")

    def compose(self, *arguments: str) -> str:
        """Run a compose verb; what it says."""
        command = [*self.compose_command_property, *arguments]
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=900, env=os.environ | self.environ
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def start(self) -> None:
        """Build, and start without waiting for health."""
        self.compose("build", "keys", *(role for role in ROLES if role != "store"))
        self.compose("up", "--detach", *(self.services or ()))

    def address(self, name: str) -> str:
        """The published address of a port on this machine."""
        variables = {what: variable for variable, what in PORTS.items()}
        return f"127.0.0.1:{self.environ[variables[name]]}"

    def container(self, service: str) -> Container:
        """A service's container, as it is now."""
        (found,) = self._containers(service)
        return found

    def _containers(self, service: str) -> list[Container]:
        wanted = [f"com.docker.compose.project={self.project}", f"com.docker.compose.service={service}"]
        found: list[Container] = engine().containers.list(all=True, filters={"label": wanted})
        return found

    def inside(self, service: str, *command: str) -> tuple[int, str]:
        """Run a command in a service's container; exit code and output."""
        code, output = self.container(service).exec_run(list(command))
        return code, output.decode()

    async def healthy(self, *services: str) -> None:
        """Wait until the engine calls them healthy, by the health checks of their images. One that ended is started again by
        the engine: only one that does not become healthy in time has failed."""
        for service in services:
            try:
                async with asyncio.timeout(HEALTHY_SECONDS_MAX):
                    while True:
                        if self._is_healthy(service):
                            break
                        await asyncio.sleep(0.5)
            except TimeoutError:
                said = self.container(service).logs()[-2_000:].decode()
                raise AssertionError(f"{service} is not healthy after {HEALTHY_SECONDS_MAX} s: {said}") from None

    def _is_healthy(self, service: str) -> bool:
        found = self._containers(service)
        return bool(found) and found[0].attrs["State"].get("Health", {}).get("Status") == "healthy"

    async def queried(self, query: str) -> list[dict[str, Any]]:
        """Prometheus' answer to an instant query."""
        url = f"http://{self.address('prometheus')}/api/v1/query?query={quote(query)}"
        answer = await asyncio.to_thread(_read, url)
        assert answer["status"] == "success", answer
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result

    async def judged_rules(self) -> list[dict[str, Any]]:
        """Prometheus's rules, once it has judged each."""
        url = f"http://{self.address('prometheus')}/api/v1/rules"
        async with asyncio.timeout(HEALTHY_SECONDS_MAX):
            while True:
                groups = (await asyncio.to_thread(_read, url))["data"]["groups"]
                rules = [rule for group in groups for rule in group["rules"]]
                if rules and all(rule["health"] != "unknown" for rule in rules):
                    return rules
                await asyncio.sleep(1)

    async def prometheus_has(self, query: str) -> list[dict[str, Any]]:
        """Wait until a query has data, and all of it numbers: a rate is none before its second scrape."""
        found: list[dict[str, Any]] = []
        try:
            async with asyncio.timeout(HEALTHY_SECONDS_MAX):
                while True:
                    with suppress(URLError, OSError):  # it is not up yet
                        found = await self.queried(query)
                    if found and not any(one["value"][1] == "NaN" for one in found):
                        return found
                    await asyncio.sleep(1)
        except TimeoutError:
            raise AssertionError(f"{query} has no data, or no numbers: {found}") from None


def _read(url: str) -> dict[str, Any]:
    with urlopen(url, timeout=10) as answer:
        read: dict[str, Any] = json.load(answer)
        return read


@contextmanager
def composed(images: Images) -> Iterator[Composed]:
    """The cluster of docker-compose.yml, without the services that no image could be had for; gone afterwards."""
    environ = {variable: free_address().rpartition(":")[2] for variable in PORTS}
    environ |= {"WIRE": os.environ.get("EDDYLINE_COMMON_WIRE", "grpc")}
    environ |= {"TAG": TAG, "DOCKER_BUILDKIT": os.environ.get("DOCKER_BUILDKIT", "")} | images.environ
    services = ["nats", *ROLES, *(name for name in ("prometheus", "grafana") if name not in images.missing)]
    with Composed(f"eddyline-test-{os.getpid()}", environ, services) as cluster:
        yield cluster
