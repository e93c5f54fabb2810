"""Plain English: bounds on what `python -m tests.house.dialect` prints, and on the length of documents.

A text above a bound has an entry with its figure. Figures may only fall: lower an entry after a rewrite, and remove it
once the text is within the bound.
"""

from __future__ import annotations

from functools import cache
from typing import Final

import pytest

from tests.house.dialect import PACKAGES, ROOT, Figures, measured, names

PERCENT_MAX: Final = 1.0
"""leveldb, etcd, tigerbeetle, anyio, httpx, dask: 0 to 1 %, measured the same way."""
WORDS_MAX: Final = 0.01
"""Words of the list for each sentence; a text of any size may have one."""
CLAUSES_ABOVE: Final[dict[str, float]] = {
    "libs/cli/README.md": 2.0,
    "libs/client (docstrings)": 6.7,
    "libs/client/README.md": 4.5,
    "libs/clients/README.md": 2.8,
    "libs/core (docstrings)": 4.0,
    "libs/core/README.md": 3.6,
    "services/delivery (docstrings)": 10.7,
    "services/delivery/README.md": 7.3,
    "services/spark/README.md": 4.2,
    "services/store (docstrings)": 2.9,
    "services/store/README.md": 2.7,
    "tests (docstrings)": 4.5,
}
"""Percent of sentences that open with a bare What, Who or Where clause."""
PASSIVES_ABOVE: Final[dict[str, float]] = {
    "libs/cli/README.md": 3.5,
    "libs/client (docstrings)": 2.4,
    "libs/clients/README.md": 1.7,
    "libs/clients/go/README.md": 10.5,
    "libs/core (docstrings)": 2.0,
    "libs/core/README.md": 6.7,
    "services/delivery (docstrings)": 4.6,
    "services/delivery/README.md": 4.8,
    "services/spark/README.md": 2.6,
    "services/store/README.md": 1.6,
    "tests (docstrings)": 2.8,
}
"""Percent of sentences in which something is told, said or asked without an actor."""
WORDS_ABOVE: Final[dict[str, int]] = {
    "libs/cli (docstrings)": 54,
    "libs/cli/README.md": 30,
    "libs/client (docstrings)": 84,
    "libs/client/README.md": 29,
    "libs/clients/README.md": 28,
    "libs/core (docstrings)": 101,
    "libs/core/README.md": 30,
    "libs/export (docstrings)": 31,
    "libs/export/README.md": 22,
    "services/delivery (docstrings)": 92,
    "services/delivery/README.md": 37,
    "services/spark (docstrings)": 47,
    "services/spark/README.md": 28,
    "services/store (docstrings)": 102,
    "services/store/FORMAT.md": 23,
    "services/store/README.md": 26,
    "tests (docstrings)": 173,
}
"""How many words of the list."""
NAMES_MAX: Final[dict[str, int]] = {
    "libs/cli": 3,
    "libs/client": 2,
    "libs/core": 4,
    "libs/export": 1,
    "services/spark": 5,
    "services/store": 3,
    "tests": 239,
}
"""Classes, functions and tests with a word of the list in their name; 0 for packages that are not named."""
LENGTHS_MAX: Final = {
    "README.md": 900,
    "ARCHITECTURE.md": 2_700,
    "CHANGELOG.md": 1_000,
    "libs/core/ACCESS.md": 1_200,
    "tests/bench/README.md": 4_000,
}
"""Words of a document, as `wc -w` counts them."""


@cache
def figures() -> dict[str, Figures]:
    return measured()


TEXTS: Final = sorted(figures())


@pytest.mark.parametrize("text", TEXTS)
def test_few_sentences_open_with_a_bare_clause(text: str) -> None:
    assert figures()[text].clause_percent <= CLAUSES_ABOVE.get(text, PERCENT_MAX)


@pytest.mark.parametrize("text", TEXTS)
def test_few_sentences_have_a_passive_without_an_actor(text: str) -> None:
    assert figures()[text].passive_percent <= PASSIVES_ABOVE.get(text, PERCENT_MAX)


@pytest.mark.parametrize("text", TEXTS)
def test_words_of_the_list_are_rare(text: str) -> None:
    bound = max(1, int(WORDS_MAX * figures()[text].sentences))
    assert figures()[text].words <= WORDS_ABOVE.get(text, bound)


@pytest.mark.parametrize("package", PACKAGES)
def test_names_are_without_words_of_the_list(package: str) -> None:
    assert len(names(package)) <= NAMES_MAX.get(package, 0), names(package)


def test_entries_are_of_texts_that_exist() -> None:
    assert {*CLAUSES_ABOVE, *PASSIVES_ABOVE, *WORDS_ABOVE} <= set(TEXTS)


@pytest.mark.parametrize("document", LENGTHS_MAX)
def test_document_that_is_read_first_is_short(document: str) -> None:
    assert len((ROOT / document).read_text(encoding="utf-8").split()) <= LENGTHS_MAX[document]
