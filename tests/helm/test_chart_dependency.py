"""The chart as a dependency of others: switched on and off by a condition, and twice in one release by aliases."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.support.kubernetes.helm import CHART, PACKED, HelmFailed, Manifest, of_kind, rendered, run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


def parent(folder: Path, dependencies: Sequence[Mapping[str, str]], values: Mapping[str, object]) -> Path:
    """A chart that has this one as it is, in its folder `charts`."""
    chart = folder / "platform"
    shutil.copytree(CHART, chart / "charts" / "eddyline")
    (chart / "templates").mkdir()
    version = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))["version"]
    full = [{"name": "eddyline", "version": version, **one} for one in dependencies]
    meta = {"apiVersion": "v2", "name": "platform", "version": "1.0.0", "dependencies": full}
    (chart / "Chart.yaml").write_text(yaml.safe_dump(meta), encoding="utf-8")
    (chart / "values.yaml").write_text(yaml.safe_dump(dict(values)), encoding="utf-8")
    return chart


@pytest.mark.parametrize("major", PACKED)
def test_condition_of_a_parent_switches_it_on_and_off(tmp_path: Path, major: int) -> None:
    values = {"eddyline": {"enabled": True, "clusterId": "prod"}, "global": {"imageRegistry": "example.com"}}
    chart = parent(tmp_path, [{"condition": "eddyline.enabled"}], values)
    made = rendered(major, chart=chart)
    assert made == rendered(major, sets=["clusterId=prod"])
    assert rendered(major, chart=chart, sets=["eddyline.enabled=false"]) == []
    run(major, "lint", "--quiet", "--with-subcharts", str(chart))


def test_false_that_no_condition_reads_is_refused(tmp_path: Path) -> None:
    chart = parent(tmp_path, [{}], {"eddyline": {"enabled": False}})
    with pytest.raises(HelmFailed, match=r"condition: <its name>\.enabled"):
        rendered(chart=chart)


@pytest.mark.parametrize("major", PACKED)
def test_two_of_it_in_one_release_are_apart(tmp_path: Path, major: int) -> None:
    aliases = ("orders", "payments")
    monitored = {"metrics": {"serviceMonitor": {"enabled": True}}}
    dependencies = [{"alias": alias, "condition": f"{alias}.enabled"} for alias in aliases]
    chart = parent(tmp_path, dependencies, dict.fromkeys(aliases, monitored))
    made = rendered(major, chart=chart)
    named = [(one["kind"], one["metadata"]["name"]) for one in made]
    assert len(named) == len(set(named))
    selecting = [*of_kind(made, "ServiceMonitor"), *of_kind(made, "Service")]
    labels: Sequence[Manifest] = [one["metadata"]["labels"] for one in of_kind(made, "Service")]
    for one in selecting:
        wanted = one["spec"]["selector"].get("matchLabels", one["spec"]["selector"])
        found = {of["app.kubernetes.io/name"] for of in labels if wanted.items() <= of.items()}
        assert len(found) == 1, one["metadata"]["name"]
