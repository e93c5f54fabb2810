"""One Spark session and one store a worker, small and quiet."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.cluster.processes import KillableStore
from tests.support.spark.target import TopicAt

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session on two cores, which tries a task four times as a cluster does. Made once: it takes 8 s."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    made = (
        SparkSession.builder.master("local[2, 4]")
        .appName("eddyline-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    yield made
    made.stop()


@pytest.fixture(scope="session")
def store_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A store for a session's tests, each with a topic of its own."""
    with KillableStore(tmp_path_factory.mktemp("store")) as store:
        yield store.address


@pytest.fixture
def topic(store_address: str, tmp_path: Path) -> TopicAt:
    """A new topic of kind LOG in it."""
    made = TopicAt(store_address, tmp_path.name)
    made.make()
    return made


@pytest.fixture
def killable_store(tmp_path: Path) -> Iterator[KillableStore]:
    """A store of a test's own, not yet started."""
    made = KillableStore(tmp_path / "store")
    yield made
    made.kill()
