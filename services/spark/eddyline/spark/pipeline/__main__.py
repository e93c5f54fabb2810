"""`python -m eddyline.spark.pipeline`: the demo's buckets, while they change, to Parquet; what that says, plotted.

    demo        a cluster of its own, with real data: certificates and suffix rules, changed all the while
    export      twice, the second run with what came since the first
    Spark       certificates by the month they expire in; changes per key and hour
    PNG         both

The folder is kept: a later run goes on with the same cluster and exports what is new. `--store` reads a cluster that is
there already.
"""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow.parquet as pq

from eddyline.spark.jobs.arguments import add_access, asked_of
from eddyline.spark.jobs.export import ExportOptions, export
from eddyline.spark.jobs.job import tell
from eddyline.spark.options.read import parse_options, with_access
from eddyline.spark.pipeline import certificates, changes
from eddyline.spark.pipeline.demo_cluster import DemoFailed, demo_cluster, is_level
from eddyline.spark.pipeline.pictures import draw_changes, draw_expiry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from eddyline.spark.options.read import ReadOptions
    from eddyline.spark.pipeline.demo_cluster import DemoCluster

LEVEL_S: Final = 120.0
TOPICS: Final = {"topics": "certs,routes"}
CHANGES: Final = 300
"""At 20 a second: a quarter of a minute, while Spark starts."""


def main(arguments: list[str] | None = None) -> int:
    """Run it; the exit status."""
    parser = argparse.ArgumentParser(
        prog="make pipeline", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=Path("eddyline-data/pipeline"), help="folder (default: %(default)s)"
    )
    parser.add_argument("--store", help="host:port of a role of a cluster that has the topics routes and certs")
    add_access(parser)
    parser.add_argument(
        "--changes", type=int, default=CHANGES, help="changes to wait for, twice (default: %(default)s)"
    )
    given = parser.parse_args(arguments)
    out = given.out.absolute()
    with ExitStack() as opened:
        try:
            demo: DemoCluster | None = None
            if given.store is None:
                tell(f"starting the demo's cluster in {out / 'cluster'}")
                demo = opened.enter_context(demo_cluster(out / "cluster"))
            spark = _session()
            opened.callback(spark.stop)
            rows = _export(spark, out / "parquet", demo, given)
        except DemoFailed as error:
            tell(f"{error}; its log is {out / 'cluster' / 'demo.log'}")
            return 1
        if rows is None:
            return 1
        return _report(spark, out)


def _session() -> SparkSession:
    from pyspark.sql import SparkSession

    return (
        SparkSession.builder.appName("eddyline-pipeline")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.log.level", "ERROR")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )


def _export(spark: SparkSession, parquet: Path, demo: DemoCluster | None, given: argparse.Namespace) -> int | None:
    """Export, twice where the demo goes on; records of both runs, or None where a topic was refused."""
    rows = 0
    for run in (1, 2) if demo is not None else (1,):
        if demo is not None:
            # What a subscriber sees of the first copy counts as changes too.
            enough = _changes(demo.wait_for(is_level, "copied its buckets", LEVEL_S)) + given.changes
            demo.wait_for(partial(_has_made, enough), f"made {given.changes} changes", LEVEL_S)
        options = _read_options(given) if demo is None else parse_options({"store": demo.address, **TOPICS})
        for done in export(spark, ExportOptions(options, str(parquet)), tell):
            if done.error:
                tell(f"{done.topic} was not exported: {done.error}: {done.message}")
                return None
            tell(f"run {run}: {done.topic}: {done.rows:,} records, {done.bytes:,} bytes, {done.files} files")
            rows += done.rows
    return rows


def _read_options(given: argparse.Namespace) -> ReadOptions:
    return with_access(parse_options({"store": given.store, **TOPICS, **asked_of(given).as_options()}), os.environ)


def _has_made(change_count: int, moment: dict[str, object]) -> bool:
    return _changes(moment) >= change_count


def _changes(moment: dict[str, object]) -> int:
    made = moment.get("changes")
    return made if isinstance(made, int) else 0


def _report(spark: SparkSession, out: Path) -> int:
    records = {topic: spark.read.parquet(str(out / "parquet" / f"topic={topic}")) for topic in ("certs", "routes")}
    found = certificates.parsed(certificates.newest(records["certs"])).cache()
    by_month = certificates.by_month(found).toArrow()
    bad = found.where("error IS NOT NULL").count()
    per_key = changes.per_key_and_hour(records["routes"]).toArrow()
    per_time = changes.per_time(records["routes"]).toArrow()
    tables, pictures = out / "tables", out / "pictures"
    for folder in (tables, pictures):
        folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(by_month, tables / "certificates_by_month.parquet")
    pq.write_table(per_time, tables / "changes_per_time.parquet")
    pq.write_table(per_key, tables / "changes_per_key_and_hour.parquet")
    draw_expiry(by_month, pictures / "certificates.png")
    draw_changes(per_time, per_key, pictures / "changes.png")
    made = sum(row["changes"] for row in per_key.to_pylist())
    tell(f"certificates: {found.count() - bad} in {by_month.num_rows} months; {bad} values are none")
    tell(f"changes: {made:,} of {len(set(per_key.column('key').to_pylist())):,} keys")
    for path in sorted([*tables.iterdir(), *pictures.iterdir()]):
        sys.stdout.write(f"{path}\n")
    sys.stdout.write(f"{out / 'parquet'}/topic=*/day=*/*.parquet\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
