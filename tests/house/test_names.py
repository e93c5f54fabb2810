"""One name, one class: over all packages together, a reader who finds a class by its name finds one."""

from __future__ import annotations

import ast
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from tests.house.test_tidy import ROOT, python_files

if TYPE_CHECKING:
    from collections.abc import Iterator

TWINS: Final = "libs/client/eddyline/client/sync/"
"""Classes of the blocking client have the names of the asyncio classes whose calls they make."""
CLIENT: Final = "libs/client/"
SHARED: Final = {
    "Difference": "a key of VerifySource's answer, as ingest found it and as the client returns it",
    "PrefixDrift": "a prefix of VerifySource's answer, as ingest counted it and as the client returns it",
}
"""Classes of two packages that have the same fields, since they are the two ends of one message."""


def classes() -> Iterator[tuple[str, str]]:
    """Yield the name of each class of the product, without a leading underscore, and its file."""
    for path in python_files():
        file = str(path.relative_to(ROOT))
        if file.startswith(("libs/", "services/")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    yield node.name.removeprefix("_"), file


def test_a_name_is_that_of_one_class() -> None:
    files = defaultdict[str, list[str]](list)
    for name, file in classes():
        files[name].append(file)
    for name, where in files.items():
        twins = [file for file in where if file.startswith(TWINS)]
        if twins and len(where) == 2 and all(file.startswith(CLIENT) for file in where):
            where.remove(twins[0])
        assert len(where) == 1 or name in SHARED, f"{name}: {where}: give each the name of its kind"
    assert all(len(files[name]) == 2 for name in SHARED), "a class that is alone needs no entry"
