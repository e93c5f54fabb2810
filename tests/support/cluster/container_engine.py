"""A container engine, wherever one is: found, or said clearly that there is none; and the images that no registry gives.

If images can be pulled, Dockerfiles build as they stand. Otherwise a base is made on this machine (debootstrap, as root),
packages come as wheels of this machine's Python, NATS from the wheel that has it, and Prometheus from Debian's package;
parts that cannot be made so are left out and reported.
Nothing here starts or stops an engine. On Debian, as root, where the kernel has neither iptables nor forwarding to give:
`apt-get install docker.io docker-compose debootstrap`, then

    dockerd --iptables=false --ip6tables=false --ip-forward=false --ip-masq=false --bip 198.18.0.1/24 \\
      --default-address-pool base=198.18.8.0/21,size=24

and DOCKER_BUILDKIT=0 where the docker command has no buildx.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

import docker
import pytest
from docker.errors import ImageNotFound

ROOT: Final = Path(__file__).parents[3]
PUBLIC_BASE: Final = "python:3.11-slim"
LOCAL_BASE: Final = "eddyline-test-base:bookworm"
LOCAL_NATS: Final = "eddyline-test-nats:local"
LOCAL_PROMETHEUS: Final = "eddyline-test-prometheus:local"
DEBIAN: Final = "bookworm"
PACKAGES: Final = "python3,python3-venv,python3-pip,ca-certificates"
WHEELS: Final = ROOT / "build/wheels"
PULL_SECONDS_MAX: Final = 120
MAKE_SECONDS_MAX: Final = 900


@dataclass(frozen=True)
class Images:
    """Variables of docker-compose.yml, and services that no image could be had for, with the reason."""

    environ: dict[str, str]
    missing: dict[str, str] = field(default_factory=dict)


@cache
def engine() -> docker.DockerClient:
    """The engine's client; skips the test where none answers."""
    where = os.environ.get("DOCKER_HOST", "the default socket")
    if shutil.which("docker") is None:
        pytest.skip("there is no container engine: no docker command on this machine")
    # Asked by the command: the library leaves its socket open where nobody answers.
    asked = subprocess.run(
        ["docker", "version", "--format", "{{.Server.Version}}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if asked.returncode:
        said = asked.stderr.strip().splitlines()[-1:]
        pytest.skip(f"no container engine answers at {where} ({' '.join(said)}): start one, or set DOCKER_HOST")
    return docker.from_env(timeout=60)


def compose_command() -> list[str]:
    """`docker compose`, else the older `docker-compose`; skips the test where there is neither."""
    if shutil.which("docker") and _succeeds("docker", "compose", "version"):
        return ["docker", "compose"]
    if shutil.which("docker-compose"):
        return ["docker-compose"]
    pytest.skip("an engine answers, but there is neither `docker compose` nor docker-compose")


def images(scratch: Path) -> Images:
    """Images to build from and to run, pulled or made."""
    if _pulled(PUBLIC_BASE):
        return Images({"BASE": PUBLIC_BASE})
    _make_base(scratch)
    _make_wheels()
    environ = {"BASE": LOCAL_BASE, "PIP_ARGS": "--no-index --find-links=/src/wheels", "NATS_IMAGE": LOCAL_NATS}
    _make_nats(scratch)
    missing = {"grafana": "no image can be pulled, and Grafana comes in no other way"}
    if why := _make_prometheus(scratch):
        missing["prometheus"] = why
    else:
        environ["PROMETHEUS_IMAGE"] = LOCAL_PROMETHEUS
    return Images(environ, missing)


def _pulled(image: str) -> bool:
    if _has(image):
        return True
    command = ["docker", "pull", "--quiet", image]
    try:
        return subprocess.run(command, capture_output=True, check=False, timeout=PULL_SECONDS_MAX).returncode == 0
    except (subprocess.TimeoutExpired, FileNotFoundError):
        return False


def _make_base(scratch: Path) -> None:
    if _has(LOCAL_BASE):
        return
    if shutil.which("debootstrap") is None or os.geteuid() != 0:
        pytest.skip(f"{PUBLIC_BASE} cannot be pulled, and a base cannot be made: that takes debootstrap, as root")
    root = scratch / "base"
    _run("debootstrap", "--variant=minbase", f"--include={PACKAGES}", DEBIAN, str(root))
    archive = scratch / "base.tar"
    _run("tar", "-C", str(root), "-cf", str(archive), ".")
    _run("docker", "import", str(archive), LOCAL_BASE)
    archive.unlink()
    shutil.rmtree(root)


def _make_wheels() -> None:
    """The roles' dependencies as wheels, where Dockerfiles copy them from."""
    done = WHEELS / ".made-of"
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    if done.exists() and done.read_text(encoding="utf-8") == constraints:
        return
    members = [
        "libs/api",
        "libs/core",
        "libs/wire",
        "libs/client",
        "libs/cli",
        "services/store",
        "services/ingest",
        "services/delivery",
    ]
    arguments = ["wheel", "--quiet", "--wheel-dir", str(WHEELS), "-c", "constraints.txt", "hatchling", *members]
    _run(sys.executable, "-m", "pip", *arguments)
    for own in WHEELS.glob("eddyline_*.whl"):
        own.unlink()
    done.write_text(constraints, encoding="utf-8")


def _make_nats(scratch: Path) -> None:
    server = Path(sys.executable).parent / "nats-server"
    _make_image(scratch, LOCAL_NATS, server, "nats-server", "RUN mkdir /data")


def _make_prometheus(scratch: Path) -> str:
    """Make the image; empty = it is there, else why not."""
    if _has(LOCAL_PROMETHEUS):
        return ""
    if shutil.which("apt-get") is None:
        return "no image can be pulled, and there is no Debian package of it here"
    folder = scratch / "prometheus"
    folder.mkdir()
    try:
        _run("apt-get", "download", "--quiet", "prometheus", cwd=folder)
        (package,) = folder.glob("*.deb")
        _run("dpkg", "-x", str(package), str(folder))
    except (subprocess.CalledProcessError, ValueError) as error:
        return f"no image can be pulled, and Debian's package cannot be had ({_brief(error)})"
    binary = folder / "usr/bin/prometheus"
    _make_image(
        scratch,
        LOCAL_PROMETHEUS,
        binary,
        "prometheus",
        "RUN mkdir /prometheus && chown 65534:65534 /prometheus\nUSER 65534",
    )
    return ""


def _make_image(scratch: Path, image: str, binary: Path, name: str, more: str) -> None:
    """An image of the local base and one static program."""
    if _has(image):
        return
    context = scratch / f"{name}-context"
    context.mkdir()
    shutil.copy2(binary, context / name)
    dockerfile = f'FROM {LOCAL_BASE}\nCOPY {name} /usr/local/bin/{name}\n{more}\nENTRYPOINT ["{name}"]\n'
    (context / "Dockerfile").write_text(dockerfile, encoding="utf-8")
    _run("docker", "build", "--quiet", "--tag", image, str(context))


def _has(image: str) -> bool:
    try:
        engine().images.get(image)
    except ImageNotFound:
        return False
    return True


def _succeeds(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 0


def _run(*command: str, cwd: Path = ROOT) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=MAKE_SECONDS_MAX)
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr[-2_000:])


def _brief(error: Exception) -> str:
    return str(error).splitlines()[0][:200]
