"""Metrics: names spelt in one place, made by their role, documented with their unit; labels that have a bound."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from eddyline.core.telemetry import names as telemetry
from tests.house.test_tidy import ROOT, python_files
from tests.support.telemetry.scrape import constants, label_constants

ROLES = ("store", "ingest", "delivery")
NAMES = ROOT / "libs/core/eddyline/core/telemetry/names.py"
UNITS = {"_seconds": "s", "_bytes": "bytes", "_bytes_total": "bytes", "_revisions": "revisions"}
"""A unit that a name ends in, and what the README's table says."""


def names() -> dict[str, str]:
    """Metric names by their constants."""
    prefixes = tuple(f"{role.upper()}_" for role in ROLES)
    return {constant: name for constant, name in vars(telemetry).items() if constant.startswith(prefixes)}


def product_files() -> list[Path]:
    return [path for path in python_files() if path.relative_to(ROOT).parts[0] in ("libs", "services")]


def test_no_other_module_spells_a_metrics_name() -> None:
    spelt = re.compile(r"eddyline_(?:" + "|".join(ROLES) + r")_\w+")
    where = {
        str(path.relative_to(ROOT)): found
        for path in product_files()
        if path != NAMES
        and (found := spelt.findall(path.read_text(encoding="utf-8")))
        and (found := spelt.findall(path.read_text(encoding="utf-8")))
    }
    assert not where


@pytest.mark.parametrize("role", ROLES)
def test_every_metric_is_made_by_its_role_and_by_no_other(role: str) -> None:
    made = (ROOT / f"services/{role}/eddyline/{role}/metrics.py").read_text(encoding="utf-8")
    used = re.findall(r"telemetry\.([A-Z_]+)", made)
    metrics = [constant for constant in used if not constant.startswith("LABEL_")]
    assert sorted(metrics) == sorted(constant for constant in names() if constant.startswith(f"{role.upper()}_"))


def test_every_label_is_used() -> None:
    made = "".join((ROOT / f"services/{role}/eddyline/{role}/metrics.py").read_text(encoding="utf-8") for role in ROLES)
    labels = {constant for constant in vars(telemetry) if constant.startswith("LABEL_")}
    assert labels == set(re.findall(r"telemetry\.(LABEL_[A-Z]+)", made))
    assert "topic" not in label_constants()


def test_names_end_as_the_text_form_wants() -> None:
    reserved = ("_bucket", "_count", "_sum", "_created", "_info")
    assert not [name for name in names().values() if name.endswith(reserved)]
    assert not [name for name in names().values() if "_total" in name.removesuffix("_total")]


def rows(role: str) -> dict[str, tuple[str, str]]:
    """The README's table of metrics: unit and meaning by name."""
    text = (ROOT / f"services/{role}/README.md").read_text(encoding="utf-8")
    found = re.findall(r"^\| `(eddyline_\w+)`(?: \{[^}]*\})? \| ([^|]*) \| ([^|]*) \|$", text, re.MULTILINE)
    return {name: (unit, meaning) for name, unit, meaning in found}


@pytest.mark.parametrize("role", ROLES)
def test_every_metric_is_documented_with_its_unit(role: str) -> None:
    documented = rows(role)
    assert set(documented) == constants(role)
    for name, (unit, meaning) in documented.items():
        assert meaning
        for ending, word in UNITS.items():
            if name.endswith(ending):
                assert unit == word, name
