"""Metrics as values, as text, and pushed: names, kinds and buckets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from eddyline.core.telemetry.metrics import Histogram, MetricPoint, counter, counters, gauge, gauges, histogram, one_of
from eddyline.core.telemetry.metrics_otlp import OtlpExporter
from eddyline.core.telemetry.otlp import NO_REASON
from tests.support.telemetry.metric_collector import collecting
from tests.support.telemetry.scrape import in_place

if TYPE_CHECKING:
    from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric as Pushed

BOUNDS = (1.0, 2.0, 5.0)


def observed(*values: float) -> Histogram:
    made = Histogram(BOUNDS)
    for value in values:
        made.observe(value)
    return made


def test_observation_counts_in_the_first_bucket_whose_bound_is_not_below_it() -> None:
    now = observed(0, 1, 1.5, 2, 5, 5.1, 100).now()
    assert now.counts == (2, 2, 1, 2)
    assert now.observation_count == 7
    assert now.total == 0 + 1 + 1.5 + 2 + 5 + 5.1 + 100


def test_distribution_of_a_histogram_is_a_snapshot() -> None:
    made = observed(1)
    before = made.now()
    made.observe(1)
    assert before.counts[0] == 1
    assert made.now().counts[0] == 2


def test_text_has_names_kinds_and_values_as_they_were_given() -> None:
    seen = in_place(
        [
            counter("a_bytes_total", "A.", 3),
            gauge("b_bytes", "B.", True),
            counters("c_total", "C.", ("source",), [MetricPoint(2, ("x",)), MetricPoint(4, ('odd "name"\\\n',))]),
            gauges("d_seconds", "D.", ("source",), [MetricPoint(0.5, ("x",))]),
            histogram("e_seconds", "E.", observed(1, 3, 9)),
        ]
    )
    assert seen.names == {"a_bytes_total", "b_bytes", "c_total", "d_seconds", "e_seconds"}
    assert [seen.families[name].type for name in sorted(seen.names)] == [
        "counter",
        "gauge",
        "counter",
        "gauge",
        "histogram",
    ]
    assert seen.value("a_bytes_total") == 3
    assert seen.value("b_bytes") == 1
    assert seen.value("c_total", source='odd "name"\\\n') == 4
    assert seen.value("d_seconds", source="x") == 0.5
    buckets = {
        sample.labels["le"]: sample.value for sample in seen.families["e_seconds"].samples if "le" in sample.labels
    }
    assert buckets == {"1.0": 1, "2.0": 1, "5.0": 2, "+Inf": 3}


def test_nothing_observed_and_nothing_labelled_are_there_all_the_same() -> None:
    seen = in_place([histogram("e_seconds", "E.", observed()), counters("c_total", "C.", ("source",), [])])
    assert seen.value("e_seconds") == 0
    assert seen.series("c_total") == {}


def test_state_is_one_of_its_names() -> None:
    seen = in_place([one_of("s", "S.", "state", ("A", "B", "C"), "B")])
    assert seen.series("s") == {("A",): 0, ("B",): 1, ("C",): 0}


def test_push_has_names_kinds_and_values_as_they_were_given() -> None:
    with collecting() as (collector, url):
        exporter = OtlpExporter(url, role="store", version="9", instance="host:1")
        told = [
            counter("a_bytes_total", "A.", 3),
            gauges("d", "D.", ("source", "state"), [MetricPoint(1, ("x", "LIVE"))]),
            histogram("e_seconds", "E.", observed(1, 3, 9)),
        ]
        assert exporter.export(told, start_ns=10, now_ns=20) == ""
        exporter.close()
    (resource,) = collector.requests[0].resource_metrics
    said = {attribute.key: attribute.value.string_value for attribute in resource.resource.attributes}
    assert (said["service.name"], said["service.version"], said["service.instance.id"]) == ("store", "9", "host:1")
    (scope,) = resource.scope_metrics
    pushed: dict[str, Pushed] = {metric.name: metric for metric in scope.metrics}
    assert set(pushed) == {"a_bytes_total", "d", "e_seconds"}
    assert not any(metric.unit for metric in scope.metrics)
    count = pushed["a_bytes_total"].sum
    assert count.is_monotonic
    assert (count.data_points[0].as_int, count.data_points[0].start_time_unix_nano) == (3, 10)
    (state,) = pushed["d"].gauge.data_points
    assert {label.key: label.value.string_value for label in state.attributes} == {"source": "x", "state": "LIVE"}
    (spread,) = pushed["e_seconds"].histogram.data_points
    assert (list(spread.bucket_counts), spread.count, spread.sum) == ([1, 0, 1, 1], 3, 13)
    assert list(spread.explicit_bounds) == list(BOUNDS)
    assert not spread.HasField("min")


@pytest.mark.parametrize(
    ("variables", "expected", "left_out"),
    [
        ({}, {"service.name": "store", "service.namespace": "eddyline"}, []),
        (
            {"OTEL_RESOURCE_ATTRIBUTES": "deployment.environment=prod, k8s.pod.name = store-0 ,team=a%2Cb%20c,"},
            {"service.name": "store", "deployment.environment": "prod", "k8s.pod.name": "store-0", "team": "a,b c"},
            [],
        ),
        (
            {"OTEL_RESOURCE_ATTRIBUTES": "service.name=x,service.namespace=shop,a=b=c"},
            {"service.name": "x", "service.namespace": "shop", "service.version": "9", "a": "b=c"},
            [],
        ),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=x", "OTEL_SERVICE_NAME": "y"}, {"service.name": "y"}, []),
        ({"OTEL_RESOURCE_ATTRIBUTES": "prod,=x,a=1", "OTEL_SERVICE_NAME": " "}, {"a": "1"}, ["prod", "=x"]),
    ],
)
def test_opentelemetrys_variables_set_resource_attributes(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    variables: dict[str, str],
    expected: dict[str, str],
    left_out: list[str],
) -> None:
    for name in ("OTEL_RESOURCE_ATTRIBUTES", "OTEL_SERVICE_NAME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with collecting() as (collector, url):
        exporter = OtlpExporter(url, role="store", version="9", instance="host:1")
        assert exporter.export([counter("a_total", "A.", 1)], start_ns=1, now_ns=2) == ""
        exporter.close()
    (resource,) = collector.requests[0].resource_metrics
    said = {attribute.key: attribute.value.string_value for attribute in resource.resource.attributes}
    assert expected.items() <= said.items()
    assert said["service.instance.id"] == "host:1"
    assert [record.fields["text"] for record in caplog.records] == left_out  # type: ignore[attr-defined]


@pytest.mark.parametrize("value", [True, False, 3, np.int64(3), np.uint32(3), 0.5, np.float64(0.5)])
def test_push_has_a_value_of_any_kind_that_counts(value: float) -> None:
    with collecting() as (collector, url):
        exporter = OtlpExporter(url, role="store", version="9", instance="host:1")
        assert exporter.export([gauge("a", "A.", value)], start_ns=10, now_ns=20) == ""
        exporter.close()
    (point,) = collector.requests[0].resource_metrics[0].scope_metrics[0].metrics[0].gauge.data_points
    assert (point.as_int or point.as_double) == value


def test_push_without_a_collector_returns_a_reason() -> None:
    with collecting() as (_, url):
        pass
    exporter = OtlpExporter(url, role="store", version="9", instance="host:1")
    exporter.close()
    assert exporter.export([counter("a_total", "A.", 1)], start_ns=1, now_ns=2) == NO_REASON
