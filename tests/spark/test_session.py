"""Spark itself: what every other test here stands on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_session_runs_python_on_its_workers(spark: SparkSession) -> None:
    assert sum(spark.sparkContext.parallelize(range(10), 2).map(lambda number: number * 2).collect()) == 90
