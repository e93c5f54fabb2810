"""proto/README.md pasted line by line, with real compilers: the code that each language gets is where the page says.

A plugin that this machine does not have is left out of its line; protoc itself makes the messages then. Python's line is in
the first hour of a client author.
"""

from __future__ import annotations

import json
import re
import shutil
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.support.clients.contract_page import (
    ROOT,
    environment,
    generated_go,
    page_lines,
    passes,
    without_missing_plugins,
    workspace,
)
from tests.support.clients.example_clients import built

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

STEMS = sorted(path.stem for path in (ROOT / "proto" / "eddyline" / "v1").glob("*.proto"))


def names(folder: Path, pattern: str) -> list[str]:
    """Files made, by name."""
    return sorted(path.name for path in folder.rglob(pattern))


async def test_go_is_one_package(tmp_path: Path) -> None:
    await generated_go(workspace(tmp_path))
    made = tmp_path / "gen" / "eddyline" / "v1"
    assert names(made, "*.pb.go") == sorted(
        [f"{stem}.pb.go" for stem in STEMS]
        + [f"{stem}_grpc.pb.go" for stem in STEMS if stem not in ("errors", "types")]
    )
    assert "\npackage eddylinev1\n" in (made / "types.pb.go").read_text()


async def test_java_has_a_class_a_file(tmp_path: Path) -> None:
    given = environment(workspace(tmp_path))
    (line,) = page_lines("Java")
    await passes(without_missing_plugins(line, given), tmp_path, given)
    made = tmp_path / "gen" / "eddyline" / "v1"
    assert {"Record.java", "AppendRecordsRequest.java", "TopicKind.java", "FoldProto.java"} <= set(
        names(made, "*.java")
    )


async def test_types_for_node_name_the_oneofs(tmp_path: Path) -> None:
    command = await built("node")
    given = environment(workspace(tmp_path))
    (tmp_path / "node_modules").symlink_to(command.parent / "node_modules")
    (line,) = page_lines("TypeScript")
    await passes(line, tmp_path, given)
    frame = (tmp_path / "gen" / "eddyline" / "v1" / "WatchTopicsResponse.ts").read_text()
    assert re.search(r"'frame'\?: \"rows\"", frame), frame
    assert "export interface Record__Output" in (tmp_path / "gen" / "eddyline" / "v1" / "Record.ts").read_text()


async def test_c_sharp_has_its_namespace(tmp_path: Path) -> None:
    given = environment(workspace(tmp_path))
    (line,) = page_lines("C#")
    await passes(without_missing_plugins(line, given), tmp_path, given)
    made = sorted((tmp_path / "gen").glob("*.cs"))
    assert {path.name.lower() for path in made} >= {f"{stem}.cs" for stem in STEMS}
    assert all("namespace Eddyline.V1 {" in path.read_text() for path in made)


async def test_c_plus_plus_has_its_namespace(tmp_path: Path) -> None:
    given = environment(workspace(tmp_path))
    (line,) = page_lines("C++")
    await passes(without_missing_plugins(line, given), tmp_path, given)
    assert "namespace eddyline {\nnamespace v1 {" in (tmp_path / "gen" / "eddyline" / "v1" / "log.pb.h").read_text()


async def test_buf_generates_by_its_template(tmp_path: Path) -> None:
    """With those of its plugins that are here; protoc's own always are."""
    given = environment(tmp_path)
    if shutil.which("go") is not None:
        (tmp_path / "go").mkdir()
        given = await generated_go(workspace(tmp_path / "go"))
    shutil.copytree(ROOT / "proto", tmp_path / "proto")
    template = yaml.safe_load((ROOT / "proto" / "buf.gen.yaml").read_text())
    here = [one for one in template["plugins"] if "local" not in one or shutil.which(one["local"], path=given["PATH"])]
    (tmp_path / "proto" / "buf.gen.yaml").write_text(json.dumps({**template, "plugins": here}))
    (line,) = page_lines("buf")
    await passes(line, tmp_path / "proto", given)
    made = tmp_path / "proto" / "gen"
    assert {path.name for path in made.iterdir()} == {one["out"].removeprefix("gen/") for one in here}
    assert (made / "java" / "eddyline" / "v1" / "Record.java").is_file()
    assert "namespace Eddyline.V1 {" in (made / "csharp" / "Types.cs").read_text()
