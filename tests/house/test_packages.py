"""The packages say what they need: bounds that hold, and no more than they import."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).parents[2]
API: Final = ROOT / "libs" / "api"


MEMBERS: Final = sorted(
    str(path.parent.relative_to(ROOT))
    for part in ("libs", "services")
    for path in (ROOT / part).glob("*/pyproject.toml")
)


def project(member: str) -> dict[str, Any]:
    """A member's metadata."""
    table: dict[str, Any] = tomllib.loads((ROOT / member / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return table


def lines(member: str) -> list[str]:
    """All that a member asks for, extras too, as it is written."""
    table = project(member)
    extras: dict[str, list[str]] = table.get("optional-dependencies", {})
    return [*table["dependencies"], *(line for extra in extras.values() for line in extra)]


def dependencies(member: str) -> dict[str, str]:
    """A member's unconditional requirements, by name: the bounds as written."""
    return {re.split(r"[^\w.-]", line, maxsplit=1)[0]: line for line in project(member)["dependencies"]}


def test_bounds_of_the_contract_package_are_those_of_its_generated_code() -> None:
    asked = dependencies("libs/api")
    texts = [path.read_text(encoding="utf-8") for path in sorted((API / "eddyline" / "v1").glob("*_pb2*.py"))]
    protobuf = {version for text in texts for version in re.findall(r"Protobuf Python Version: ([\d.]+)", text)}
    grpcio = {version for text in texts for version in re.findall(r"GRPC_GENERATED_VERSION = '([\d.]+)'", text)}
    (protobuf_min,), (grpcio_min,) = protobuf, grpcio
    next_but_one = int(protobuf_min.split(".")[0]) + 2
    assert asked == {
        "grpcio": f"grpcio>={grpcio_min},<2",
        "protobuf": f"protobuf>={protobuf_min},<{next_but_one}",
    }


@pytest.mark.parametrize("member", MEMBERS)
def test_a_package_has_siblings_of_its_own_version_and_bounds_that_are_stated_once(member: str) -> None:
    bounds = dependencies("libs/api")
    version = project("libs/api")["version"]
    assert project(member)["version"] == version
    for line in lines(member):
        name = re.split(r"[^\w.-]", line, maxsplit=1)[0]
        if name.startswith("eddyline-"):
            assert line.endswith(f"=={version}"), line
        elif name in bounds:
            assert line == bounds[name]


@pytest.mark.parametrize("member", MEMBERS)
def test_a_package_brings_its_readme_and_its_licence(member: str) -> None:
    table = project(member)
    assert (table["readme"], table["license"], table["license-files"]) == ("README.md", "Apache-2.0", ["LICENSE"])
    assert (ROOT / member / "README.md").is_file()
    assert (ROOT / member / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
