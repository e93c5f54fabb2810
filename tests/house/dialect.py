"""House dialect, measured: `python -m tests.house.dialect` prints a table; `test_dialect.py` holds its bounds.

Two kinds of sentences are counted, both rare in projects that strangers read with ease (0 to 1 %): those that open with a
bare What, Who or Where clause in place of a subject, and passives of telling, saying and asking that name no actor. The word
count is of words that only this house used.
"""

from __future__ import annotations

import ast
import re
import sys
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.house.test_tidy import ROOT, tracked

if TYPE_CHECKING:
    from pathlib import Path

PACKAGES: Final = (
    "libs/core",
    "libs/client",
    "libs/export",
    "libs/wire",
    "libs/cli",
    "services/store",
    "services/ingest",
    "services/delivery",
    "services/spark",
    "tests",
)
_CLAUSE: Final = re.compile(r"(?:What|Who|Where|Whoever|Whatever|Wherever)\b(?!.*\?$)", re.DOTALL)
_PASSIVE: Final = re.compile(
    r"\b(?:is|are|was|were|be|been|being) (?:\w+ly )?(?:told|said|asked|judged|heard|looked at|gone by|said so)\b"
)
WORDS: Final = ("anew", "beside", "elsewhere", "nobody", "whoever", "shown", "told")
_WORD: Final = {word: re.compile(rf"\b{word}\b", re.IGNORECASE) for word in WORDS}
_SENTENCE_END: Final = re.compile(r"(?<=[.!?:])(?:\*\*)?\s+(?=[A-Z`*(\"])|\n\s*\n|\n(?=\s*(?:[-*|]|\d+\.|[IJ]\d+[: ]))")


class Figures(NamedTuple):
    """Counts of one text: sentences, how many of each kind, and words of the list."""

    sentences: int
    clauses: int
    passives: int
    words: int

    @property
    def clause_percent(self) -> float:
        """Share of sentences that open with a bare clause."""
        return 100 * self.clauses / max(self.sentences, 1)

    @property
    def passive_percent(self) -> float:
        """Share of sentences with a passive of saying or asking."""
        return 100 * self.passives / max(self.sentences, 1)


def sentences_of(text: str) -> list[str]:
    """The sentences of a text; code blocks and headings are left out."""
    text = re.sub(r"```.*?```|^#+ [^\n]*$", "", text, flags=re.DOTALL | re.MULTILINE)
    parts = (part.strip(" \n|-*#>\t") for part in _SENTENCE_END.split(text))
    return [part for part in parts if re.search(r"[a-z]{2}", part)]


def figures_of(sentences: list[str]) -> Figures:
    """Count."""
    return Figures(
        len(sentences),
        sum(_CLAUSE.match(sentence) is not None for sentence in sentences),
        sum(_PASSIVE.search(sentence) is not None for sentence in sentences),
        sum(len(pattern.findall(sentence)) for sentence in sentences for pattern in _WORD.values()),
    )


def docstrings(path: Path) -> list[str]:
    """Docstrings of a module, its classes and functions, and of its constants."""
    bodies = (getattr(node, "body", None) for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    values = (child.value for body in bodies if isinstance(body, list) for child in body if isinstance(child, ast.Expr))
    return [value.value for value in values if isinstance(value, ast.Constant) and isinstance(value.value, str)]


def package_sentences(package: str) -> list[str]:
    """All sentences of a package's docstrings."""
    files = [path for path in tracked(f"{package}/*.py") if "/v1/" not in str(path)]
    return [sentence for path in files for text in docstrings(path) for sentence in sentences_of(text)]


def documents() -> list[Path]:
    """Every document of ours."""
    return tracked("*.md")


def comments(path: Path) -> list[str]:
    """Comments of a proto file, each block one text."""
    blocks = re.findall(r"(?:^[ \t]*//.*\n)+", path.read_text(encoding="utf-8"), re.MULTILINE)
    return [re.sub(r"^[ \t]*// ?", "", block, flags=re.MULTILINE) for block in blocks]


def names(package: str) -> list[str]:
    """Names of a package's classes and functions that contain a word of the list, tests included."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in tracked(f"{package}/*.py")]
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    defined = [node.name for tree in trees for node in ast.walk(tree) if isinstance(node, kinds)]
    return [name for name in defined if set(WORDS) & set(re.split(r"_|(?<=[a-z])(?=[A-Z])", name.lower()))]


def measured() -> dict[str, Figures]:
    """Figures by package and document."""
    figures = {f"{package} (docstrings)": figures_of(package_sentences(package)) for package in PACKAGES}
    texts = [text for path in tracked("proto/*.proto") for text in comments(path)]
    figures["proto (comments)"] = figures_of([sentence for text in texts for sentence in sentences_of(text)])
    for path in documents():
        figures[str(path.relative_to(ROOT))] = figures_of(sentences_of(path.read_text(encoding="utf-8")))
    return figures


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")


def main(arguments: list[str]) -> int:
    """Print the table, or with paths the sentences that count."""
    if arguments:
        for name in arguments:
            for path in [ROOT / name] if (ROOT / name).is_file() else tracked(f"{name}/*.py"):
                texts = [path.read_text(encoding="utf-8")] if path.suffix == ".md" else docstrings(path)
                for sentence in (sentence for text in texts for sentence in sentences_of(text)):
                    if _CLAUSE.match(sentence) or _PASSIVE.search(sentence):
                        _say(f"{path.relative_to(ROOT)}: {' '.join(sentence.split())}")
        return 0
    _say(f"{'':46}  sentences  clause  passive  words")
    for name, one in measured().items():
        _say(f"{name:46}  {one.sentences:9}  {one.clause_percent:5.1f}%  {one.passive_percent:6.1f}%  {one.words:5}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
