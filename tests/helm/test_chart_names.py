"""Names in the chart: two releases never share one, and no volume claim of an installed release changes its name."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.support.kubernetes.helm import CHART, NAMESPACE, PACKED, Manifest, of_kind, rendered, run
from tests.support.kubernetes.kube_api import CLAIMS, CRON_JOBS, STATEFUL_SETS, kube_api

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

EU, US = "payments-history-of-europe-in-production", "payments-history-of-europe-in-production-2"
"""Releases whose full names are longer than 40 characters, and agree in the first 40."""
OLD = "payments-history-of-europe-in-production"
"""The common name of both in charts without hashes."""
JOBS = ["spark.jobs[0].name=export-orders", "spark.jobs[0].args={-m,a}"]
SECOND_JOB = ["spark.jobs[1].name=export-users", "spark.jobs[1].args={-m,b}"]


def names(manifests: Sequence[Manifest]) -> set[tuple[str, str]]:
    return {(one["kind"], one["metadata"]["name"]) for one in manifests}


def claims(manifests: Sequence[Manifest]) -> list[str]:
    """Names of the volume claims that Kubernetes makes of them."""
    (stateful,) = of_kind(manifests, "StatefulSet")
    return [
        f"{template['metadata']['name']}-{stateful['metadata']['name']}-{shard}"
        for template in stateful["spec"]["volumeClaimTemplates"]
        for shard in range(stateful["spec"]["replicas"])
    ]


@contextmanager
def cluster(**objects: Manifest) -> Iterator[list[str]]:
    """Flags for Helm to see a cluster that has these, by their kind."""
    paths = {"stateful_set": STATEFUL_SETS, "claim": CLAIMS, "cron_job": CRON_JOBS}
    served = {
        paths[kind].format(namespace=NAMESPACE, name=one["metadata"]["name"]): _of_release(one)
        for kind, one in objects.items()
    }
    with kube_api(served) as address:
        yield ["--dry-run=server", "--disable-openapi-validation", f"--kube-apiserver={address}"]


def _of_release(manifest: Manifest) -> Manifest:
    """With what Helm writes upon its own objects."""
    release = manifest["metadata"].get("labels", {}).get("app.kubernetes.io/instance", "")
    owner = {"meta.helm.sh/release-name": release, "meta.helm.sh/release-namespace": NAMESPACE}
    return manifest | {"metadata": manifest["metadata"] | {"annotations": owner}}


def installed_by_an_old_chart(release: str) -> Manifest:
    """The StatefulSet of a release with a long name, as charts without hashes made it."""
    (made,) = of_kind(rendered(release=release, sets=[f"fullnameOverride={OLD}"]), "StatefulSet")
    assert made["metadata"]["name"] == f"{OLD}-store"
    return made


@pytest.mark.parametrize("release", ["a", "demo", "eddyline", "eddyline-of-europe", "history-of-all-our-orders-in"])
def test_name_of_up_to_40_characters_has_no_hash(release: str) -> None:
    full = release if "eddyline" in release else f"{release}-eddyline"
    assert len(full) <= 40
    (stateful,) = of_kind(rendered(release=release), "StatefulSet")
    assert stateful["metadata"]["name"] == f"{full}-store"


@pytest.mark.parametrize("length", [39, 40, 41, 60])
def test_name_that_was_requested_is_taken_as_it_is_up_to_40_characters(length: int) -> None:
    asked = "n" * length
    (stateful,) = of_kind(rendered(sets=[f"fullnameOverride={asked}"]), "StatefulSet")
    full = stateful["metadata"]["name"].removesuffix("-store")
    assert len(full) == min(length, 40)
    assert (full == asked) is (length <= 40)


@pytest.mark.parametrize("major", PACKED)
def test_releases_that_begin_alike_share_no_name(major: int) -> None:
    assert f"{EU}-eddyline"[:40] == f"{US}-eddyline"[:40]
    eu, us = names(rendered(major, release=EU, sets=JOBS)), names(rendered(major, release=US, sets=JOBS))
    assert not eu & us
    overrides = [f"fullnameOverride={name}-eddyline" for name in (EU, US)]
    first, second = (names(rendered(major, sets=[one])) for one in overrides)
    assert not first & second


def test_jobs_that_begin_alike_share_no_name() -> None:
    made = of_kind(rendered(release=EU, sets=[*JOBS, *SECOND_JOB]), "CronJob")
    assert len({one["metadata"]["name"] for one in made}) == 2
    assert all(len(one["metadata"]["name"]) <= 52 for one in made)


@pytest.mark.parametrize("major", PACKED)
def test_upgrade_keeps_a_long_name_as_it_was_installed(major: int) -> None:
    before = installed_by_an_old_chart(EU)
    with cluster(stateful_set=before) as flags:
        after = rendered(major, release=EU, more=flags)
    assert claims(after) == claims([before]) == [f"data-{OLD}-store-0"]
    assert {name[: len(OLD)] for _, name in names(after)} == {OLD}


def test_upgrade_of_a_release_that_was_made_with_a_hash_keeps_it() -> None:
    (before,) = of_kind(rendered(release=EU), "StatefulSet")
    with cluster(stateful_set=before) as flags:
        assert claims(rendered(release=EU, more=flags)) == claims([before])


def test_name_of_another_release_is_not_taken_over() -> None:
    with cluster(stateful_set=installed_by_an_old_chart(EU)) as flags:
        assert claims(rendered(release=US, more=flags)) == claims(rendered(release=US)) != [f"data-{OLD}-store-0"]


@pytest.mark.parametrize("labels", [{}, {"app.kubernetes.io/instance": EU, "app.kubernetes.io/name": "eddyline"}])
def test_volume_that_an_uninstalled_release_left_is_attached_again(labels: dict[str, str]) -> None:
    """A claim without labels is one that was brought back by hand."""
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": f"data-{OLD}-store-0", "labels": labels},
    }
    with cluster(claim=claim) as flags:
        assert claims(rendered(release=EU, more=flags)) == [f"data-{OLD}-store-0"]
        if labels:
            assert claims(rendered(release=US, more=flags)) == claims(rendered(release=US))


def test_upgrade_keeps_a_jobs_name_where_it_is_no_other_jobs() -> None:
    (made,) = of_kind(rendered(release=EU, sets=[*JOBS, f"fullnameOverride={OLD}"]), "CronJob")
    old = f"{OLD}-spark-export-orders"[:52].removesuffix("-")
    made["metadata"]["name"] = old
    with cluster(stateful_set=installed_by_an_old_chart(EU), cron_job=made) as flags:
        (after,) = of_kind(rendered(release=EU, sets=JOBS, more=flags), "CronJob")
        both = of_kind(rendered(release=EU, sets=[*JOBS, *SECOND_JOB], more=flags), "CronJob")
    assert after["metadata"]["name"] == old
    assert old not in {one["metadata"]["name"] for one in both}


@pytest.mark.parametrize("release", ["demo", EU])
def test_notes_name_the_override_that_keeps_a_long_name(release: str) -> None:
    with cluster(stateful_set=installed_by_an_old_chart(EU)) as flags:
        said = run(3, "install", release, str(CHART), f"--namespace={NAMESPACE}", *flags)
    assert (f"fullnameOverride={OLD}" in said) is (release == EU)
    overridden = rendered(release=EU, sets=[f"fullnameOverride={OLD}"])
    assert claims(overridden) == [f"data-{OLD}-store-0"]
