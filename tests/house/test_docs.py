"""The documents say what is there: files, targets, settings, commands and errors they name exist, and none is left out."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import re
import shlex
import subprocess
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from eddyline.cli.local_cluster.find import ADDRESS_VARIABLE
from eddyline.cli.main import parse_arguments, parser
from eddyline.client.transport.access import ENVIRONMENT
from eddyline.core.runtime.settings import COMMON_PREFIX, CommonSettings
from eddyline.delivery import config as delivery_config
from eddyline.delivery.watch.watches import START_WAIT_S
from eddyline.ingest import config as ingest_config
from eddyline.store import config as store_config
from eddyline.v1 import errors_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eddyline.core.runtime.settings import SettingsClass

ROOT = Path(__file__).parents[2]
ROLES = ("store", "ingest", "delivery")
MEMBERS = (
    "services/store",
    "services/ingest",
    "services/delivery",
    "services/spark",
    "libs/client",
    "libs/export",
    "libs/cli",
    "libs/core",
)
SECTIONS = (
    "What it is",
    "What it owns",
    "Run it",
    "Code layout",
    "Invariants",
    "Configuration",
    "Failure modes",
)
FILE_ENDINGS = (".py", ".js", ".go", ".java", ".proto", ".md", ".toml", ".txt", ".in", ".wal", ".binpb")
NOT_OF_THE_REPOSITORY = ("<data", "eddyline-data", "wal/<", "/var/", "gen/")
"""Files made by a running cluster or present on a machine."""
REASONS_OF_ANY_CALL = {
    "CLUSTER_MISMATCH": "a store says it to roles of another cluster, whatever they ask",
    "UNAUTHENTICATED": "every role says it to callers without a known key",
    "PERMISSION_DENIED": "every role says it to callers whose key does not cover the call",
    "QUOTA_REQUESTS": "every role says it to keys with too many calls at once",
    "WRONG_SHARD": "a store says it to calls that were forwarded to it, whatever they ask",
    "SERVED_ELSEWHERE": "ingest and delivery say it to calls of the stores' services that they do not take",
    "NOT_READY": "every role says it while it starts and stops",
    "DEADLINE": "gRPC ends any call so",
    "INTERNAL": "a defect; no call promises one",
    "CATALOG_LOST": "a store does not start with it",
    "NEWER_FORMAT": "a store does not start with it",
}


class Settings(NamedTuple):
    """One document's settings, as the code has them."""

    document: str
    prefix: str
    defaults: SettingsClass


SETTINGS = (
    Settings("services/store/README.md", store_config.PREFIX, store_config.StoreSettings()),
    Settings("services/ingest/README.md", ingest_config.PREFIX, ingest_config.IngestSettings()),
    Settings("services/delivery/README.md", delivery_config.PREFIX, delivery_config.DeliverySettings()),
    Settings("libs/core/README.md", COMMON_PREFIX, CommonSettings()),
)


@cache
def text_of(document: str) -> str:
    return (ROOT / document).read_text(encoding="utf-8")


@cache
def paths() -> frozenset[str]:
    """Every file and folder of the repository, from its root."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\n")
    files = [name for name in listed if name and (ROOT / name).exists()]
    folders = {str(parent) for name in files for parent in Path(name).parents}
    return frozenset(files) | folders


DOCUMENTS = sorted(name for name in paths() if name.endswith(".md"))


def spans(document: str) -> list[str]:
    """Text in backticks, outside of blocks."""
    prose = re.sub(r"```.*?```", "", text_of(document), flags=re.DOTALL)
    return [span.replace("\n", " ") for span in re.findall(r"`([^`]+)`", prose)]


def looks_like_a_path(span: str) -> bool:
    if any(part in span for part in NOT_OF_THE_REPOSITORY) or not re.fullmatch(r"[\w.<>/-]+", span):
        return False
    known = ("libs/", "services/", "tests/", "proto/", ".ci/")
    return span.endswith((*FILE_ENDINGS, "/")) or span.startswith(known)


def exists(span: str, document: str) -> bool:
    """From the root; else below the document's own folder; the root's documents may name any file by its end."""
    name = span.rstrip("/")
    if "<role>" in name:
        return all(exists(span.replace("<role>", role), document) for role in ROLES)
    folder = str(Path(document).parent)
    below = [path for path in paths() if folder == "." or path.startswith(folder + "/")]
    return name in paths() or any(path.endswith("/" + name) for path in below)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_named_file_exists(document: str) -> None:
    missing = [span for span in spans(document) if looks_like_a_path(span) and not exists(span, document)]
    assert not missing


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_link_leads_somewhere(document: str) -> None:
    links = [link.split("#")[0] for link in re.findall(r"\]\(([^)]+)\)", text_of(document))]
    assert not [link for link in links if link and not ((ROOT / document).parent / link).exists()]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_named_make_target_exists(document: str) -> None:
    makefile = text_of("Makefile")
    targets = {name for line in re.findall(r"^([a-z][a-z -]*):(?!=)", makefile, re.MULTILINE) for name in line.split()}
    lines = spans(document) + [line.strip() for line in text_of(document).splitlines() if line.startswith("    ")]
    words = [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("make ")]
    named = {word for word in itertools.chain(*words) if re.fullmatch(r"[a-z-]+", word)}
    assert named <= targets


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: settings.document)
def test_every_setting_is_documented_with_its_default(settings: Settings) -> None:
    rows = re.findall(rf"^\| `({settings.prefix}\w+)` \| `?([^|`]*?)`? \|", text_of(settings.document), re.MULTILINE)
    documented = {name: "" if default == "empty" else default for name, default in rows}
    assert len(documented) == len(rows)
    actual = {}
    for field in dataclasses.fields(settings.defaults):
        value = getattr(settings.defaults, field.name)
        actual[settings.prefix + field.name.upper()] = ",".join(value) if isinstance(value, tuple) else str(value)
    assert documented == actual


@pytest.mark.parametrize("document", DOCUMENTS)
def test_no_other_setting_is_named(document: str) -> None:
    bench = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests/bench").rglob("*.py"))
    known = {ADDRESS_VARIABLE, *ENVIRONMENT.values(), *re.findall(r"\bEDDYLINE_BENCH_[A-Z]+\b", bench)} | {
        settings.prefix + field.name.upper() for settings in SETTINGS for field in dataclasses.fields(settings.defaults)
    }
    assert set(re.findall(r"\bEDDYLINE_[A-Z_]*[A-Z]\b", text_of(document))) <= known


def subparsers(of: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    return {
        name: choice
        for action in of._actions
        if isinstance(action, argparse._SubParsersAction)
        for name, choice in action.choices.items()
    }


def unknown_words(words: list[str]) -> Iterator[str]:
    """Verbs and flags of a command line that the parser does not have."""
    at = parser()
    for word in words:
        below = subparsers(at)
        if below and not word.startswith("-"):
            if word not in below:
                yield word
                return
            at = below[word]
        elif word.startswith("-") and word.split("=")[0] not in at._option_string_actions:
            yield word


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_named_verb_and_flag_of_the_command_exists(document: str) -> None:
    lines = [shlex.split(span) for span in spans(document) if span.startswith("eddyline ")]
    assert not [word for words in lines for word in unknown_words(words[1:])]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_command_line_in_documents_parses(document: str, capsys: pytest.CaptureFixture[str]) -> None:
    for line in re.findall(r"^    (?:\.venv/bin/)?eddyline (.*)$", text_of(document), re.MULTILINE):
        try:
            parse_arguments(shlex.split(line, comments=True))
        except SystemExit:
            pytest.fail(f"{line}: {capsys.readouterr().err}")


def test_every_verb_is_documented() -> None:
    documented = {span for span in spans("libs/cli/README.md") if re.fullmatch(r"[a-z-]+", span)}
    assert set(subparsers(parser())) <= documented


@pytest.mark.parametrize("member", MEMBERS)
def test_every_member_has_the_same_sections(member: str) -> None:
    titles = re.findall(r"^## (.*)$", text_of(f"{member}/README.md"), re.MULTILINE)
    assert tuple(titles) == SECTIONS


def call_comments() -> dict[str, str]:
    """Each RPC's comment, by its name."""
    comments: dict[str, str] = {}
    for path in sorted((ROOT / "proto" / "eddyline" / "v1").glob("*.proto")):
        for comment, name in re.findall(r"((?: +//.*\n)+) +rpc (\w+)", path.read_text(encoding="utf-8")):
            comments[f"{path.stem}.{name}"] = re.sub(r"\s*//\s*", " ", comment)
    return comments


def reasons() -> set[str]:
    names = {name.removeprefix("ERROR_REASON_") for name in errors_pb2.ErrorReason.keys()}  # noqa: SIM118
    return names - {"UNSPECIFIED"}


def test_every_reason_is_listed_by_a_call() -> None:
    words = set(re.findall(r"\b[A-Z][A-Z_]+\b", " ".join(call_comments().values())))
    assert reasons() - words == set(REASONS_OF_ANY_CALL)


def test_every_listed_reason_is_in_the_table() -> None:
    for name, comment in call_comments().items():
        _, there, listed = comment.partition("Errors:")
        assert there, f"{name} does not say what it can end with"
        assert set(re.findall(r"\b[A-Z][A-Z_]+\b", listed)) <= reasons(), name


def test_delivery_states_how_long_a_watch_waits_for_the_store() -> None:
    text = (ROOT / "services/delivery/README.md").read_text()
    assert re.findall(r"`STORE_UNREACHABLE` after ([0-9.]+) s", text) == [f"{START_WAIT_S:g}"]
