"""Dashboards and alert rules: queries name what there is and have data on a fresh install; alerts name their runbooks."""

from __future__ import annotations

import json
import re
from random import Random
from typing import TYPE_CHECKING, NamedTuple

import pytest
import yaml

from eddyline.core.forwarding.stats import ForwardedCalls
from eddyline.core.runtime.clock import SystemHost
from eddyline.core.runtime.settings import CommonSettings
from eddyline.core.server.health import HealthBoard
from eddyline.core.telemetry import names as telemetry
from eddyline.core.telemetry.metrics_text import metrics_text
from eddyline.delivery.config import WATCHES_MAX
from eddyline.delivery.metrics import delivery_metrics
from eddyline.ingest.config import IngestSettings
from eddyline.ingest.copy.progress import STATES, STOPPED
from eddyline.ingest.metrics import ingest_metrics
from eddyline.ingest.role import IngestRole
from eddyline.store.config import UNSEGMENTED_BYTES_MAX
from eddyline.store.metrics import StoreMetrics
from eddyline.store.stats import RecoveryProgress
from eddyline.store.write.admission import APPLY_LAG_RECORDS_MAX
from tests.support.delivery.role import served_delivery
from tests.support.kubernetes.helm import CHART, Manifest, of_kind, rendered
from tests.support.manual_clock import ManualClock
from tests.support.telemetry.promql import Database, grouping_labels, selectors, series_of
from tests.support.telemetry.scrape import Scrape

if TYPE_CHECKING:
    from collections.abc import Iterable

SEVERITIES = {"critical", "warning", "info"}
TABLE = (CHART / "runbooks/README.md").read_text(encoding="utf-8")
NAMES = {
    value for constant, value in vars(telemetry).items() if constant.startswith(("STORE_", "INGEST_", "DELIVERY_"))
}
EVERY_NAMESPACE = ".*"
"""Grafana's value of `$namespace` if all are chosen."""
OF_TLS = "Certificate"
"""The panel that is empty where there is no TLS."""
READY = {"Ready", "Store", "Ingest", "Delivery", "NATS connected", "Store reached"}
FLAGS = {"Read-only", "Disk low", "Memory full"}
OF_HISTOGRAMS = ("_bucket", "_count", "_sum")


class Query(NamedTuple):
    """One query, and where it stands."""

    where: str
    text: str


def dashboards() -> dict[str, Manifest]:
    return {
        path.stem: json.loads(path.read_text(encoding="utf-8"))
        for path in sorted((CHART / "dashboards").glob("*.json"))
    }


def alerts() -> dict[str, Manifest]:
    groups = yaml.safe_load((CHART / "alerts/eddyline.yaml").read_text(encoding="utf-8"))["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def panel_queries() -> list[Query]:
    return [
        Query(f"{name}: {panel['title']}", target["expr"].replace("$namespace", EVERY_NAMESPACE))
        for name, dashboard in dashboards().items()
        for panel in dashboard["panels"]
        for target in panel["targets"]
    ]


def alert_queries() -> list[Query]:
    return [Query(name, rule["expr"]) for name, rule in alerts().items()]


def metric_of(sample: str) -> str:
    """The metric that a sample's name is of."""
    plain = next((sample.removesuffix(end) for end in OF_HISTOGRAMS if sample.endswith(end)), sample)
    return plain if plain in NAMES else sample


async def fresh_install() -> Database:
    """The series in Prometheus of one idle instance of each role."""
    database = Database()
    store = await StoreMetrics(recovery=RecoveryProgress, disk_floor_bytes=1, forwarded=ForwardedCalls(1)).collect()
    async with served_delivery() as served:
        delivery = await delivery_metrics(served.role, ForwardedCalls(1))
        ingest = await ingest_metrics(
            IngestRole(
                served.store,
                settings=IngestSettings(),
                common=CommonSettings(),
                clock=ManualClock(),
                rng=Random(0),
                host=SystemHost(),
                health=HealthBoard(),
            ),
            ForwardedCalls(1),
        )
    for role, metrics in {"store": store, "ingest": ingest, "delivery": delivery}.items():
        for family in Scrape(metrics_text(metrics)).families.values():
            for sample in family.samples:
                database.add(sample.name, sample.labels, f"{role}:1")
    return database


def with_a_source(database: Database) -> Database:
    """And of a source that is copied."""
    for name in (value for value in NAMES if value.startswith("eddyline_ingest_")):
        if name == telemetry.INGEST_SOURCE_STATE:
            for state in STATES:
                database.add(name, {"source": "orders", "state": state}, "ingest:1")
        elif not database.has(name) and not database.has(f"{name}_count"):
            database.add(name, {"source": "orders"}, "ingest:1")
    return database


def test_every_query_names_only_what_there_is() -> None:
    labels = {value for name, value in vars(telemetry).items() if name.startswith("LABEL_")} | {
        "namespace",
        "instance",
        "le",
    }
    for query in [*panel_queries(), *alert_queries()]:
        for name, matchers in selectors(query.text):
            assert metric_of(name) in NAMES, query
            assert {label for label, _ in matchers} <= labels, query
        assert grouping_labels(query.text) <= labels, query


async def test_every_panel_has_data_on_a_fresh_install() -> None:
    database = await fresh_install()
    without = [query for query in panel_queries() if not series_of(query.text, database, comparisons_hold=False)]
    assert {query.where.partition(": ")[2] for query in without} == {OF_TLS}
    for query in without:
        assert series_of(query.text, database, comparisons_hold=True), query


async def test_no_panel_shows_a_stand_in_next_to_its_series() -> None:
    database = with_a_source(await fresh_install())
    for query in panel_queries():
        found = series_of(query.text, database, comparisons_hold=True)
        assert frozenset() not in found or found == {frozenset()}, query


async def test_every_alert_has_something_to_fire_for() -> None:
    database = with_a_source(await fresh_install())
    for query in alert_queries():
        found = series_of(query.text, database, comparisons_hold=True)
        if "absent(" in query.text:
            assert not found, query
            assert series_of(query.text, Database(), comparisons_hold=True), query
        else:
            assert found, query


async def test_alert_texts_use_labels_that_they_have() -> None:
    database = with_a_source(await fresh_install())
    for name, rule in alerts().items():
        wanted = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        found = series_of(rule["expr"], database, comparisons_hold=True) or {frozenset()}
        assert all(wanted <= {label for label, _ in labels} for labels in found), name


def test_every_legend_is_of_labels_that_its_query_keeps() -> None:
    for name, dashboard in dashboards().items():
        for panel in dashboard["panels"]:
            for target in panel["targets"]:
                named = set(re.findall(r"\{\{(\w+)\}\}", target.get("legendFormat", "")))
                outermost = re.match(r"\(*(?:sum|max|min) by \(([^)]*)\)", target["expr"])
                kept = set(re.split(r", *", outermost[1])) if outermost else named
                assert named <= kept | {"instance"}, f"{name}: {panel['title']}"


def test_every_metric_is_on_a_dashboard() -> None:
    shown = {metric_of(name) for query in panel_queries() for name, _ in selectors(query.text)}
    assert NAMES - shown == set()


def test_panels_are_described_do_not_overlap_and_ask_the_chosen_source() -> None:
    for name, dashboard in dashboards().items():
        assert dashboard["uid"] == f"eddyline-{name}"
        taken: set[tuple[int, int]] = set()
        for panel in dashboard["panels"]:
            place = panel["gridPos"]
            cells = {
                (place["x"] + column, place["y"] + row) for column in range(place["w"]) for row in range(place["h"])
            }
            assert not cells & taken, f"{name}: {panel['title']}"
            assert max(column for column, _ in cells) < 24
            taken |= cells
            assert panel["description"].endswith("."), f"{name}: {panel['title']}"
            assert {target["datasource"]["uid"] for target in panel["targets"]} == {"${datasource}"}
        titles = [panel["title"] for panel in dashboard["panels"]]
        assert len(titles) == len(set(titles))


def test_dashboards_show_chosen_namespaces_alone_and_by_default_all_and_what_has_none() -> None:
    for name, dashboard in dashboards().items():
        (choice,) = [variable for variable in dashboard["templating"]["list"] if variable["name"] == "namespace"]
        assert choice["allValue"] == EVERY_NAMESPACE
        assert choice["current"]["value"] == ["$__all"]
        for panel in dashboard["panels"]:
            for target in panel["targets"]:
                found = list(selectors(target["expr"]))
                assert all(("namespace", "$namespace") in matchers for _, matchers in found), (
                    f"{name}: {panel['title']}"
                )


def test_yes_and_no_panels_have_words_and_colours() -> None:
    for dashboard in dashboards().values():
        for panel in dashboard["panels"]:
            if panel["type"] != "stat" or panel["title"] not in READY | FLAGS:
                continue
            (mapping,) = panel["fieldConfig"]["defaults"]["mappings"]
            bad = mapping["options"]["0" if panel["title"] in READY else "1"]
            assert bad["color"] == "red", panel["title"]
            assert bad["text"].isupper()
            assert panel["options"]["colorMode"] == "value"


def test_every_stat_has_thresholds_of_its_own() -> None:
    """Grafana's own are green, and red from 80 on, whatever is counted."""
    for name, dashboard in dashboards().items():
        for panel in dashboard["panels"]:
            if panel["type"] not in ("stat", "gauge", "bargauge"):
                continue
            where = f"{name}: {panel['title']}"
            thresholds = panel["fieldConfig"]["defaults"]["thresholds"]
            assert thresholds["mode"] == "absolute", where
            base, *steps = thresholds["steps"]
            assert base["value"] is None, where
            bounds = [step["value"] for step in steps]
            assert bounds == sorted(set(bounds)), where
            shown = panel["options"]["colorMode"] == "value"
            assert shown is bool(steps), f"{where}: a colour says something, and something has a colour"
            if panel["title"] in READY:
                assert (base["color"], bounds) == ("red", [1]), where
            if panel["title"] in FLAGS:
                assert (base["color"], bounds) == ("green", [1]), where


def test_streams_turn_red_where_delivery_takes_no_more() -> None:
    (panel,) = [panel for panel in dashboards()["delivery"]["panels"] if panel["title"] == "Watch streams"]
    steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
    assert [step["value"] for step in steps] == [None, WATCHES_MAX * 8 // 10, WATCHES_MAX]


def test_every_stopped_state_is_alerted_and_charted() -> None:
    for query in (
        alerts()["EddylineSourceStopped"]["expr"],
        *(query.text for query in panel_queries() if "Stopped" in query.where),
    ):
        (matchers,) = [matchers for _, matchers in selectors(query) if "state" in dict(matchers)]
        assert set(dict(matchers)["state"].split("|")) == set(STOPPED)


@pytest.mark.parametrize(
    ("alert", "bound"),
    [
        ("EddylineStoreFoldLags", APPLY_LAG_RECORDS_MAX // 2),
        ("EddylineStoreSealingStands", UNSEGMENTED_BYTES_MAX // 2),
        ("EddylineDeliveryNearlyFull", WATCHES_MAX * 8 // 10),
    ],
)
def test_alert_fires_at_its_share_of_the_bound(alert: str, bound: int) -> None:
    assert alerts()[alert]["expr"].endswith(f"> {bound}")


def test_every_alert_names_a_runbook_that_names_it() -> None:
    for name, rule in alerts().items():
        assert rule["labels"]["severity"] in SEVERITIES
        runbook = CHART / "runbooks" / rule["annotations"]["runbook"]
        assert f"`{name}`" in runbook.read_text(encoding="utf-8"), name
        assert f"`{name}`" in TABLE, name


def test_every_runbook_is_named_by_an_alert_and_by_the_table() -> None:
    books = {path.name for path in (CHART / "runbooks").glob("*.md")} - {"README.md"}
    assert books == {rule["annotations"]["runbook"] for rule in alerts().values()}
    assert books == set(re.findall(r"\]\(([\w-]+\.md)\)", TABLE))


@pytest.mark.parametrize("book", sorted(path.name for path in (CHART / "runbooks").glob("*-*.md")))
def test_runbook_states_what_users_see_and_what_to_do(book: str) -> None:
    text = (CHART / "runbooks" / book).read_text(encoding="utf-8")
    titles = re.findall(r"^## (.*)$", text, re.MULTILINE)
    every = ["What users see", "Look at", "Do", "When it is over"]
    assert [title for title in titles if title in every] == every, "more may stand between them"
    named = set(re.findall(r"`(Eddyline\w+)`", text))
    assert named == {name for name, rule in alerts().items() if rule["annotations"]["runbook"] == book}


def test_no_document_asks_for_a_restart_where_certificates_are_taken_without_one() -> None:
    documents = [
        *CHART.rglob("*.md"),
        *(CHART.parents[1] / part for part in ("README.md", "libs/core/ACCESS.md", "services/ingest/README.md")),
    ]
    for path in documents:
        for sentence in re.split(r"[.:]\s", path.read_text(encoding="utf-8")):
            if re.search(r"certificates?\b", sentence) and re.search(r"\brestart", sentence):
                assert re.search(r"without a restart|Nothing need be restarted", sentence), f"{path.name}: {sentence}"


def test_metrics_that_replicas_are_counted_by_are_there() -> None:
    scalers: Iterable[Manifest] = of_kind(rendered(values=[CHART / "ci/everything.yaml"]), "HorizontalPodAutoscaler")
    named = {metric["pods"]["metric"]["name"] for scaler in scalers for metric in scaler["spec"]["metrics"]}
    assert named
    assert named <= NAMES
