"""An export in this process, one split after the other: what the command and a stopped store's `export` do.

Names, plans, manifests and promises are those of `run.py`, so such a run and one of Spark's go on with each other's work.
Threading: one thread. `stop` may be set by any other: the run ends before its next split.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

from eddyline.core.errors import TopicNotFound
from eddyline.export.manifest import STATE
from eddyline.export.run import ExportRun, ExportSizes, WorkRefused
from eddyline.export.split_files import SplitFiles

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator, Sequence

    from eddyline.export.manifest import Plan
    from eddyline.export.out_dir import OutDir
    from eddyline.export.run import Line, OnGap, TopicExport
    from eddyline.export.split.calls import Cluster
    from eddyline.v1 import topic_pb2


class Stopped(Exception):
    """`stop` was set. A second run goes on with what is left."""


def export_topics(
    cluster: Cluster,
    names: Sequence[str],
    out: OutDir,
    *,
    on_gap: OnGap,
    sizes: ExportSizes,
    tell: Callable[[str], None],
    stop: threading.Event,
) -> list[TopicExport]:
    """Export topics up to their heads as they are now; a result for each.

    `names` = topics, or one prefix with `*` at its end.

    Raises:
        WorkRefused: TARGET_NOT_EMPTY.
        EddylineError: TopicNotFound: one of them, or of a prefix all; a cluster that stayed away.
        Stopped: `stop` was set.
    """
    check_target(out)
    files = SplitFiles(out, on_gap)

    def write_splits(plan: Plan) -> Iterator[Sequence[Line]]:
        for piece in plan.pieces():
            if stop.is_set():
                raise Stopped
            yield [files.write(cluster, piece)]

    run = ExportRun(
        out,
        open_cluster=lambda: nullcontext(cluster),
        write_splits=write_splits,
        on_gap=on_gap,
        sizes=sizes,
        tell=tell,
    )
    return [run.topic(topic) for topic in _topics(cluster, names)]


def check_target(out: OutDir) -> None:
    """Refuse a directory that holds files and was never an export's.

    Raises:
        WorkRefused: TARGET_NOT_EMPTY.
    """
    if out.has_entries("") and not out.exists(STATE):
        raise WorkRefused(
            "TARGET_NOT_EMPTY",
            f"{out.out} is not empty and holds no export: give a new directory, or one that an export created",
        )


def _topics(cluster: Cluster, names: Sequence[str]) -> list[topic_pb2.Topic]:
    if len(names) == 1 and names[0].endswith("*"):
        matching = cluster.list_topics(names[0][:-1])
        if not matching:
            raise TopicNotFound(f"no topic name begins with {names[0][:-1]!r}", topic=names[0])
        return matching
    return [cluster.get_topic(name) for name in names]
