"""The house rules that a machine can see, over every file of ours."""

from __future__ import annotations

import ast
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

from tests.support.hang import HANG_S

ROOT = Path(__file__).parents[2]
LINES_MAX = 500
CATALOGUE_LINES_MAX = 900
CATALOGUES = {"libs/core/eddyline/core/errors.py"}
"""Flat lists of declarations: a list is not cut in two to fit a limit."""
FUNCTION_LINES_MAX = 70
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "base", "manager"}
GENERATED = "libs/api/eddyline/v1/"
FACES = {"libs/client/eddyline/client/__init__.py", "libs/client/eddyline/client/sync/__init__.py"}
"""Packages whose names programs of others import."""


@cache
def tracked(*patterns: str) -> list[Path]:
    """Files that git knows, or would know, by pattern."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\n")
    return [ROOT / name for name in listed if name and not name.startswith(GENERATED) and (ROOT / name).is_file()]


def python_files() -> list[Path]:
    return tracked("*.py")


def test_there_is_something_to_look_at() -> None:
    assert len(python_files()) > 50


@pytest.mark.parametrize("path", python_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_file_keeps_the_house_rules(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    lines = text.count("\n")
    most = CATALOGUE_LINES_MAX if str(path.relative_to(ROOT)) in CATALOGUES else LINES_MAX
    assert lines <= most, f"{lines} lines: split it along its jobs (rule 3)"
    assert path.stem not in VAGUE_NAMES, "a file's name says its job (rule 3)"
    if path.name == "__init__.py" and str(path.relative_to(ROOT)) not in FACES:
        assert all(isinstance(node, ast.Expr) for node in tree.body), "__init__.py holds a docstring only (rule 3)"
    assert ast.get_docstring(tree), "a module docstring is its contract (rule 5)"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
            length = node.end_lineno - node.lineno + 1
            assert length <= FUNCTION_LINES_MAX, f"{node.name} has {length} lines (rule 3)"


def test_namespace_root_has_no_init() -> None:
    assert not [path for path in tracked("*__init__.py") if path.parent.name == "eddyline"]


def test_no_comment_narrates_the_work() -> None:
    planning = re.compile(r"#.*\b(TODO|FIXME|XXX|HACK|phase \d|stage \d|ticket|issue #?\d)\b", re.IGNORECASE)
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in python_files()
        if path != Path(__file__)
        for line in path.read_text(encoding="utf-8").splitlines()
        if planning.search(line)
    ]
    assert not found


def test_tests_take_no_real_time() -> None:
    sleeping = re.compile(r"\btime\.sleep\(|asyncio\.sleep\((?!0\))")
    allowed = ("tests/integration/", "tests/bench/", "tests/support/", "tests/house/")
    found = [
        str(path.relative_to(ROOT))
        for path in python_files()
        if str(path.relative_to(ROOT)).startswith("tests/")
        and not str(path.relative_to(ROOT)).startswith(allowed)
        and sleeping.search(path.read_text(encoding="utf-8"))
    ]
    assert not found, "a test waits for an event or moves a manual clock (rule 28)"


def test_no_package_index_or_machine_path_is_named() -> None:
    hosts = [
        "pypi" + ".org",
        "files.python" + "hosted",
        "registry.npm" + "js",
        "proxy.gol" + "ang",
        "repo.mav" + "en",
        "/work" + "/",
    ]
    found = [
        f"{path.relative_to(ROOT)}: {host}"
        for path in tracked()
        if path.suffix
        in {".py", ".md", ".toml", ".txt", ".json", ".yaml", ".yml", ".js", ".go", ".java", ".xml", ".sh", ".in", ""}
        for host in hosts
        if host in path.read_text(encoding="utf-8", errors="replace")
    ]
    assert not found


def test_every_make_target_has_help() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"^([a-z][a-z-]*(?: [a-z-]+)*):(?!=)(.*)$", makefile, re.MULTILINE)
    without = [name for name, rest in targets if "##" not in rest and name != "build"]
    assert not without


def test_waits_of_tests_are_bounded_against_hangs_alone() -> None:
    short = re.compile(r"asyncio\.timeout\(([0-9.]+)\)")
    waits = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in python_files()
        if str(path.relative_to(ROOT)).startswith("tests/")
        and not str(path.relative_to(ROOT)).startswith("tests/bench/")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if (match := short.search(line)) is not None and 1 <= float(match[1]) < HANG_S
    ]
    assert not waits, "a busy machine takes longer: tests.support.hang.HANG_S"


def test_files_that_documents_have_people_write_here_are_ignored_by_git() -> None:
    documents = ("README.md", "libs/core/ACCESS.md", "libs/cli/README.md", "libs/export/README.md")
    text = "\n".join((ROOT / name).read_text(encoding="utf-8") for name in documents)
    written = set(re.findall(r"(?:--(?:keys-file|secret-file|out|file)|make_keys|key >) (?:\./)?([\w.]+)", text))
    assert {"keys.toml", "billing.key", "owner.key", "lake"} <= written
    asked = subprocess.run(["git", "check-ignore", *written], cwd=ROOT, capture_output=True, text=True, check=False)
    assert set(asked.stdout.split()) == written


def test_modules_that_are_started_by_name_exist() -> None:
    """A process or a patch names its module in a string, which a move of the module does not change."""
    named = [
        (node.value, path.relative_to(ROOT))
        for path in python_files()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"tests(\.\w+)+", node.value)
    ]
    documented = [
        (name, path.relative_to(ROOT))
        for path in tracked("*.py", "*.md", "Makefile")
        for name in re.findall(r"-m (tests(?:\.\w+)+)", path.read_text(encoding="utf-8"))
    ]

    def exists(name: str) -> bool:
        path = ROOT / name.replace(".", "/")
        return path.with_suffix(".py").is_file() or path.is_dir() or path.parent.with_suffix(".py").is_file()

    assert len(named) > 5 and len(documented) > 5
    assert not [entry for entry in (*named, *documented) if not exists(entry[0])]
