"""Rooms: directories of code have a description and at most 15 files; every module is in a layer (import contracts)."""

from __future__ import annotations

import ast
import tomllib
from collections import Counter

from tests.house.test_tidy import ROOT, python_files

FILES_MAX = 15
CONTAINERS = {
    "eddyline.client": "libs/client/eddyline/client",
    "eddyline.cli": "libs/cli/eddyline/cli",
    "eddyline.core": "libs/core/eddyline/core",
    "eddyline.export": "libs/export/eddyline/export",
    "eddyline.wire": "libs/wire/eddyline/wire",
    "eddyline.store": "services/store/eddyline/store",
    "eddyline.ingest": "services/ingest/eddyline/ingest",
    "eddyline.delivery": "services/delivery/eddyline/delivery",
    "eddyline.spark": "services/spark/eddyline/spark",
}


def test_directory_has_at_most_15_files() -> None:
    counts = Counter(path.relative_to(ROOT).parent for path in python_files() if path.name != "__init__.py")
    crowded = {str(folder): count for folder, count in counts.items() if count > FILES_MAX}
    assert not crowded, "give the files that belong together a room of their own"


def test_every_room_of_a_package_has_a_description() -> None:
    rooms = {path.parent for path in python_files() if path.relative_to(ROOT).parts[0] in ("libs", "services")}
    rooms = {room for room in rooms if room.name != "eddyline" and "clients" not in room.relative_to(ROOT).parts}
    without = [room for room in rooms if not (room / "__init__.py").is_file()]
    assert not [str(room.relative_to(ROOT)) for room in without]
    for room in rooms:
        assert ast.get_docstring(ast.parse((room / "__init__.py").read_text(encoding="utf-8"))), room


def test_every_package_has_an_exhaustive_layer_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    held = {name for one in contracts if one.get("exhaustive") for name in one["containers"]}
    assert held == set(CONTAINERS)
    assert all((ROOT / folder).is_dir() for folder in CONTAINERS.values())
