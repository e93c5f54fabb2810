"""Plain English: bounds on what `python -m tests.house.dialect` prints, and on the length of documents.

A text above a bound has an entry with its figure. Figures may only fall: lower an entry after a rewrite, and remove it
once the text is within the bound.
"""

from __future__ import annotations

from functools import cache
from typing import Final

import pytest

from tests.house.dialect import PACKAGES, Figures, measured, names
from tests.house.test_tidy import ROOT

PERCENT_MAX: Final = 1.0
"""leveldb, etcd, tigerbeetle, anyio, httpx, dask: 0 to 1 %, measured the same way."""
WORDS_MAX: Final = 0.01
"""Words of the list for each sentence; a text of any size may have one."""
WORDS_ABOVE: Final[dict[str, int]] = {
    "libs/cli (docstrings)": 34,
    "libs/export (docstrings)": 11,
    "libs/export/README.md": 2,
    "services/spark (docstrings)": 27,
    "tests (docstrings)": 70,
}
"""How many words of the list."""
NAMES_MAX: Final[dict[str, int]] = {
    "libs/cli": 3,
    "libs/export": 1,
    "services/spark": 5,
    "services/store": 2,
    "tests": 70,
}
"""Classes, functions and tests with a word of the list in their name; 0 for packages that are not named."""
LENGTHS_MAX: Final = {
    "README.md": 900,
    "ARCHITECTURE.md": 2_450,
    "CHANGELOG.md": 1_120,
    "libs/cli/README.md": 2_450,
    "libs/client/README.md": 1_850,
    "libs/core/ACCESS.md": 1_200,
    "libs/core/README.md": 1_600,
    "services/delivery/README.md": 2_800,
    "services/ingest/README.md": 2_050,
    "services/spark/README.md": 2_750,
    "services/store/README.md": 2_870,
    "tests/bench/README.md": 3_300,
    "tests/bench/small/README.md": 1_500,
    "tests/bench/peers/README.md": 800,
}
"""Words of a document, as `wc -w` counts them."""


@cache
def figures() -> dict[str, Figures]:
    return measured()


TEXTS: Final = sorted(figures())


@pytest.mark.parametrize("text", TEXTS)
def test_few_sentences_open_with_a_bare_clause(text: str) -> None:
    assert figures()[text].clause_percent <= PERCENT_MAX


@pytest.mark.parametrize("text", TEXTS)
def test_few_sentences_have_a_passive_without_an_actor(text: str) -> None:
    assert figures()[text].passive_percent <= PERCENT_MAX


@pytest.mark.parametrize("text", TEXTS)
def test_words_of_the_list_are_rare(text: str) -> None:
    bound = max(1, int(WORDS_MAX * figures()[text].sentences))
    assert figures()[text].words <= WORDS_ABOVE.get(text, bound)


@pytest.mark.parametrize("package", PACKAGES)
def test_names_are_without_words_of_the_list(package: str) -> None:
    assert len(names(package)) <= NAMES_MAX.get(package, 0), names(package)


def test_entries_are_of_texts_that_exist() -> None:
    assert set(WORDS_ABOVE) <= set(TEXTS)


@pytest.mark.parametrize("document", LENGTHS_MAX)
def test_document_that_is_read_first_is_short(document: str) -> None:
    assert len((ROOT / document).read_text(encoding="utf-8").split()) <= LENGTHS_MAX[document]
