"""The snippets of libs/client/WEB.md: all compile, and those without a framework run against a store."""

from __future__ import annotations

import ast
import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from eddyline.client.sync import connect
from tests.support.clients.served_thread import store_in_thread

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = Path(__file__).parents[3] / "libs" / "client" / "WEB.md"
FRAMEWORKS = ("fastapi", "django", "celery", "prices")
"""Packages that the snippets import and the tests do not have; `prices` is the reader's project."""
SNIPPETS = {
    f"{section}-{number}": snippet
    for section, text in re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    for number, snippet in enumerate(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
}


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    with store_in_thread(tmp_path) as address:
        with connect(address) as client:
            client.put("prices", b"ETH", b"7", create=True)
        yield address


def of_section(section: str, address: str) -> list[str]:
    found = [text.replace("127.0.0.1:7701", address) for name, text in SNIPPETS.items() if name.startswith(section)]
    assert found
    return found


@pytest.mark.parametrize("name", SNIPPETS)
def test_a_snippet_is_python(name: str) -> None:
    compile(SNIPPETS[name], name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_every_snippet_without_a_framework_runs_here() -> None:
    imports = re.compile(rf"^ *from ({'|'.join(FRAMEWORKS)})\b", re.MULTILINE)
    assert {name.rpartition("-")[0] for name, text in SNIPPETS.items() if not imports.search(text)} == {
        "Script",
        "Threads",
        "Django",
        "Notebooks",
    }


def test_the_script_prints_the_prices(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(of_section("Script", address)[0], {})
    assert capsys.readouterr().out.splitlines() == ["b'BTC' b'42'", "b'ETH' b'7'"]


def test_threads_share_the_client(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(of_section("Threads", address)[0], {})
    assert capsys.readouterr().out.startswith("None\nRecord(seq=1")


def test_a_django_project_has_one_client(address: str) -> None:
    module: dict[str, object] = {}
    exec(of_section("Django", address)[0], module)
    client = module["client"]
    assert callable(client)
    with client() as connected:
        assert client() is connected
        assert connected.get("prices", b"ETH").data == b"7"


async def test_the_cells_of_a_notebook_run_one_after_the_other(tmp_path: Path) -> None:
    """Each cell is a task of its own, as in a notebook."""
    with store_in_thread(tmp_path) as address:

        def write() -> None:
            with connect(address) as client:
                client.put("prices", b"ETH", b"7", create=True)

        await asyncio.to_thread(write)
        cells: dict[str, object] = {}
        for cell in of_section("Notebooks", address):
            code = compile(cell, "cell", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            coroutine = eval(code, cells)
            if coroutine is not None:
                async with asyncio.TaskGroup() as group:
                    group.create_task(coroutine)
        assert cells["prices"] == {b"ETH": b"7"}
