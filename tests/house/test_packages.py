"""The packages say what they need: bounds that hold, and no more than they import."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
API: Final = ROOT / "libs" / "api"


def dependencies(member: str) -> dict[str, str]:
    """What a member asks for, by name: the bounds as they are written."""
    project = tomllib.loads((ROOT / member / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return {re.split(r"[^\w.-]", line, maxsplit=1)[0]: line for line in project["dependencies"]}


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
