"""The chart's alert rules: those of the file, each of one release's series alone, with a link to its runbook."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import yaml

from tests.support.kubernetes.helm import CHART, NAMESPACE, Manifest, of_kind, rendered
from tests.support.telemetry.promql import Database, selectors, series_of

if TYPE_CHECKING:
    from collections.abc import Sequence

READY = ("eddyline_store_ready", "eddyline_ingest_ready", "eddyline_delivery_ready")
FLAGS = ("eddyline_store_read_only", "eddyline_store_disk_low")


def file_rules() -> dict[str, Manifest]:
    return by_name(yaml.safe_load((CHART / "alerts/eddyline.yaml").read_text(encoding="utf-8"))["groups"])


def by_name(groups: Sequence[Manifest]) -> dict[str, Manifest]:
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def chart_rules(*sets: str) -> dict[str, Manifest]:
    (made,) = of_kind(rendered(sets=["metrics.rules.enabled=true", *sets]), "PrometheusRule")
    return by_name(made["spec"]["groups"])


def scraped(*namespaces: str) -> Database:
    """One of each role in each namespace."""
    database = Database()
    for namespace in namespaces:
        for name in (*READY, *FLAGS):
            database.add(name, {"namespace": namespace}, f"{namespace}:1")
    return database


def fires(rule: Manifest, database: Database) -> bool:
    return bool(series_of(rule["expr"], database, comparisons_hold=True))


def test_rules_are_those_of_the_file_but_for_labels_and_links() -> None:
    made, written = chart_rules(), file_rules()
    assert made.keys() == written.keys()
    for name, rule in made.items():
        matcher = re.escape(f'namespace="{NAMESPACE}"')
        plain = re.sub(rf"\{{{matcher}\}}", "", rule["expr"])
        rule["expr"] = re.sub(rf"\{{{matcher},", "{", plain)
        rule["annotations"].pop("runbook_url")
        assert rule == written[name]


def test_every_selector_is_of_the_releases_namespace_or_as_configured() -> None:
    for rule in chart_rules().values():
        found = list(selectors(rule["expr"]))
        assert found
        assert all(("namespace", NAMESPACE) in matchers for _, matchers in found), rule
    own = r'metrics.rules.matchers=cluster="eu"\,service=~"demo-.*"'
    for rule in chart_rules(own).values():
        for _, matchers in selectors(rule["expr"]):
            assert {("cluster", "eu"), ("service", "demo-.*")} <= set(matchers)
            assert "namespace" not in dict(matchers)


def test_release_that_is_gone_is_reported_though_another_is_there() -> None:
    for name in ("EddylineStoreAbsent", "EddylineIngestAbsent", "EddylineDeliveryAbsent"):
        rule = chart_rules()[name]
        assert fires(rule, scraped("other"))
        assert not fires(rule, scraped("other", NAMESPACE))
        assert not fires(file_rules()[name], scraped("other")), "by itself the file knows of one cluster"


def test_store_below_its_disk_floor_is_reported_once() -> None:
    expr = file_rules()["EddylineStoreReadOnly"]["expr"]
    assert expr == "eddyline_store_read_only == 1 and eddyline_store_disk_low == 0"


def test_alert_leads_to_its_runbook() -> None:
    base = "https://git.example.com/eddyline/helm/eddyline/runbooks"
    for end in ("", "/"):
        for rule in chart_rules(f"metrics.rules.runbookUrl={base}{end}").values():
            assert rule["annotations"]["runbook_url"] == f"{base}/{rule['annotations']['runbook']}"
    for rule in chart_rules().values():
        assert (CHART.parents[1] / rule["annotations"]["runbook_url"]).is_file()
    for rule in chart_rules("metrics.rules.runbookUrl=").values():
        assert "runbook_url" not in rule["annotations"]
