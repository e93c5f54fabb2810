"""Upgrades of an installed chart: no field that Kubernetes lets nobody change is changed, whatever the values say."""

from __future__ import annotations

import json
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.support.kubernetes.helm import (
    CHART,
    NAMESPACE,
    PACKED,
    RELEASE,
    ROOT,
    HelmFailed,
    Manifest,
    of_kind,
    rendered,
    run,
)
from tests.support.kubernetes.kube_api import STATEFUL_SETS, kube_api

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STATEFUL_SET_MAY_CHANGE = {
    "replicas",
    "ordinals",
    "template",
    "updateStrategy",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
}
"""All else of a StatefulSet's specification is refused with Forbidden."""
IMMUTABLE = {"Deployment": ("selector",), "Service": ("clusterIP",), "ConfigMap": ("immutable",)}
BIGGER = ["store.storage.size=50Gi", "store.storage.className=other", "store.storage.accessModes[0]=ReadWriteOncePod"]


GOLDEN = ROOT / "tests/golden/chart-0.1.0.json"
"""Immutable fields of the first version's manifests, by value set: an installation of it is upgraded to the present chart.
Written by `python -m tests.helm.test_chart_upgrade`, before a version that no installation can be upgraded to."""


@pytest.fixture
def next_chart(tmp_path: Path) -> Path:
    """The chart as its next version."""
    copy = tmp_path / "eddyline"
    shutil.copytree(CHART, copy)
    meta = copy / "Chart.yaml"
    loaded = yaml.safe_load(meta.read_text(encoding="utf-8"))
    meta.write_text(yaml.safe_dump(loaded | {"version": "1.2.3", "appVersion": "1.2.3"}), encoding="utf-8")
    return copy


@contextmanager
def installed(stateful_set: Manifest) -> Iterator[list[str]]:
    """Flags for Helm to see a cluster that has it, with what Kubernetes fills in."""
    claims = stateful_set["spec"]["volumeClaimTemplates"]
    filled = [
        claim | {"spec": claim["spec"] | {"volumeMode": "Filesystem"}, "status": {"phase": "Pending"}}
        for claim in claims
    ]
    meta = stateful_set["metadata"]
    owner = {"meta.helm.sh/release-name": RELEASE, "meta.helm.sh/release-namespace": NAMESPACE}
    seen = stateful_set | {
        "metadata": meta | {"annotations": owner},
        "spec": stateful_set["spec"] | {"volumeClaimTemplates": filled},
    }
    path = STATEFUL_SETS.format(namespace=NAMESPACE, name=meta["name"])
    with kube_api({path: seen}) as address:
        yield ["--dry-run=server", "--disable-openapi-validation", f"--kube-apiserver={address}"]


def immutable(manifest: Manifest) -> object:
    """Its immutable fields."""
    spec = manifest.get("spec", {})
    if manifest["kind"] == "StatefulSet":
        return {name: value for name, value in spec.items() if name not in STATEFUL_SET_MAY_CHANGE}
    return {name: spec.get(name) for name in IMMUTABLE.get(manifest["kind"], ())}


def frozen() -> dict[str, dict[str, object]]:
    """Immutable fields of this chart's manifests."""
    sets = {path.stem: [path] for path in sorted((CHART / "ci").glob("*.yaml"))} | {"default": []}
    return {
        name: {
            f"{one['kind']} {one['metadata']['name']}": held
            for one in rendered(values=paths)
            if (held := immutable(one))
        }
        for name, paths in sets.items()
    }


def test_installation_of_the_first_version_can_be_upgraded_to_this_one() -> None:
    first, now = json.loads(GOLDEN.read_text(encoding="utf-8")), frozen()
    for values, held in first.items():
        assert held == {name: now[values].get(name, before) for name, before in held.items()}
        assert [name for name in held if name.startswith("StatefulSet ")] == [
            name for name in now[values] if name.startswith("StatefulSet ")
        ], "a store under another name is an empty one"


@pytest.mark.parametrize("values", [None, *sorted(path.name for path in (CHART / "ci").glob("*.yaml"))])
@pytest.mark.parametrize("major", PACKED)
def test_next_chart_changes_no_immutable_field(next_chart: Path, values: str | None, major: int) -> None:
    paths = [CHART / "ci" / values] if values else []
    before = {(one["kind"], one["metadata"]["name"]): one for one in rendered(major, values=paths)}
    after = {(one["kind"], one["metadata"]["name"]): one for one in rendered(major, values=paths, chart=next_chart)}
    assert before.keys() == after.keys()
    assert {key: immutable(one) for key, one in before.items()} == {key: immutable(one) for key, one in after.items()}
    assert before != after


@pytest.mark.parametrize("major", PACKED)
def test_changed_size_leaves_the_claims_as_they_were_installed(next_chart: Path, major: int) -> None:
    (before,) = of_kind(rendered(major), "StatefulSet")
    with installed(before) as flags:
        (after,) = of_kind(rendered(major, sets=BIGGER, chart=next_chart, more=flags), "StatefulSet")
    assert immutable(before) == immutable(after)


def test_first_install_takes_the_size_that_was_requested() -> None:
    (made,) = of_kind(rendered(sets=BIGGER), "StatefulSet")
    (claim,) = made["spec"]["volumeClaimTemplates"]
    assert claim["spec"] == {
        "accessModes": ["ReadWriteOncePod"],
        "storageClassName": "other",
        "resources": {"requests": {"storage": "50Gi"}},
    }


def test_notes_state_how_the_volumes_of_an_installed_store_are_resized() -> None:
    (before,) = of_kind(rendered(3), "StatefulSet")
    with installed(before) as flags:
        said = run(3, "install", RELEASE, str(CHART), f"--namespace={NAMESPACE}", "--set", BIGGER[0], *flags)
    assert (
        """patch pvc data-demo-eddyline-store-0 -p '{"spec":{"resources":{"requests":{"storage":"50Gi"}}}}'""" in said
    )
    assert "delete statefulset demo-eddyline-store --cascade=orphan" in said
    with installed(before) as flags:
        said = run(3, "install", RELEASE, str(CHART), f"--namespace={NAMESPACE}", *flags)
    assert "patch pvc" not in said


@pytest.mark.parametrize("major", PACKED)
def test_other_number_of_shards_is_refused_before_anything_changes(major: int) -> None:
    (before,) = of_kind(rendered(major), "StatefulSet")
    two = before | {"spec": before["spec"] | {"replicas": 2}}
    with installed(two) as flags, pytest.raises(HelmFailed, match=r"Set store\.shards to 2"):
        rendered(major, more=flags)


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(frozen(), indent=1, sort_keys=True) + "\n", encoding="utf-8")
