"""Runs of an export: what topics hold, to Parquet, a run at a time: each goes on where the last one ended.

    plan         a range and its splits, durable before anything is written; never more than one for a place
    splits       each gives its files, under names that the split alone makes (`split_files.py`)
    leftovers    of the range, of attempts before this one, and old temporary files: removed
    manifest     the files with their sums, and what became of each seq: the bookmark

I1: a run that died is made up for by the next one: it does the same range over the same names, and a file is replaced by an
equal one. A split that is written again, or twice at a time, changes nothing.
I2: two runs at a time into one directory do the same plan, since a plan is created once (`OutDir.create`): they cost twice,
and leave what one would. In an object store, where pyarrow has no such call, keep them apart.
I3: rows + gaps + deleted = end - first of each manifest, and manifests join on.
A range is whole records of a topic's log: what is deleted after it was exported stays in the files.
A recreated topic starts again under its new epoch, and the run reports that. Records that the old topic's last plan still
lacked are lost: the run fails, or with `on_gap` warn and rows it closes the plan with a manifest that records the loss.
Failure: one topic's failure ends that topic, and its result names it.
"""

from __future__ import annotations

import errno
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Final, Literal, Protocol

from eddyline.core.errors import CursorAhead, EddylineError, Internal
from eddyline.core.model.read import ALL_RECORDS
from eddyline.core.runtime.clock import SystemClock
from eddyline.export import manifest as files
from eddyline.export.manifest import LostRange, Manifest, PartFile, Plan, Span
from eddyline.export.out_dir import OutDir
from eddyline.export.part_files import read_part_file
from eddyline.export.split.pieces import TopicSplit
from eddyline.export.split.plan import BYTES_PER_SPLIT, RECORDS_PER_SPLIT, plan_pieces

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from eddyline.export.split.calls import Cluster
    from eddyline.v1 import topic_pb2

OnGap = Literal["fail", "warn", "rows"]
Line = dict[str, object]
"""The outcome of a split, as JSON values."""

RECORDS_PER_ROUND: Final = 50_000_000
"""Elsewhere a run is one piece of work. A plan and a manifest have at most so many records: what is done stays done when a
run of hours dies, and one file tells at most some thousand files."""
WRITING_S_MAX: Final = 6 * 3600.0
"""A temporary file that nobody wrote to for so long is of a task that died. Another run may be writing a younger one."""
GAP_REFUSED: Final = "GAP"
"""Reason of a split whose gaps are not accepted (`on_gap` = fail)."""


class WorkRefused(Exception):
    """An export met what another try meets again. `reason` is the error's."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class ExportSizes:
    """Most of a file, and of a plan and a manifest."""

    records_per_file: int = RECORDS_PER_SPLIT
    bytes_per_file: int = BYTES_PER_SPLIT
    records_per_round: int = RECORDS_PER_ROUND


class WriteSplits(Protocol):
    """Writes the files of a plan's splits."""

    def __call__(self, plan: Plan) -> Iterator[Sequence[Line]]:
        """Yield the lines of splits as they are done, in any order (`split_files.SplitFiles.write`).

        Raises:
            WorkRefused, EddylineError, OSError: they cannot be written.
        """
        ...


@dataclass(slots=True)
class TopicExport:
    """The outcome of a run for one topic. `recreated_from` = the epoch exported before, where the topic was made again
    since."""

    topic: str
    epoch: int = 0
    first_seq: int = 0
    end_seq: int = 0
    rows: int = 0
    gaps: int = 0
    deleted: int = 0
    gap_rows: int = 0
    files: int = 0
    bytes: int = 0
    recreated_from: int | None = None
    abandoned: list[dict[str, int]] = field(default_factory=list)
    error: str = ""
    message: str = ""

    def add(self, manifest: Manifest) -> None:
        """Count what a manifest says."""
        self.first_seq = self.first_seq or manifest.span.first_seq
        self.end_seq = manifest.span.end_seq
        self.rows += manifest.rows
        self.gaps += manifest.gaps
        self.deleted += manifest.deleted
        self.gap_rows += manifest.gap_rows
        self.files += len(manifest.files)
        self.bytes += sum(file.bytes for file in manifest.files)


class ExportRun:
    """A run over topics, one after the other. `tell` is given a line of progress for people now and then."""

    def __init__(
        self,
        out: OutDir,
        *,
        open_cluster: Callable[[], AbstractContextManager[Cluster]],
        write_splits: WriteSplits,
        on_gap: OnGap,
        sizes: ExportSizes,
        tell: Callable[[str], None],
    ) -> None:
        self._out = out
        self._open_cluster = open_cluster
        self._write_splits = write_splits
        self._on_gap = on_gap
        self._sizes = sizes
        self._tell = tell
        self._clock = SystemClock()

    def topic(self, topic: topic_pb2.Topic) -> TopicExport:
        """Export a topic; what fails is in the result."""
        done = TopicExport(topic.name, topic.epoch)
        try:
            self._all_rounds(topic, done)
        except EddylineError as error:
            done.error, done.message = error.reason, error.message
        except WorkRefused as error:
            done.error, done.message = error.reason, str(error)
        except OSError as error:
            reason = "DISK_FULL" if error.errno in (errno.ENOSPC, errno.EDQUOT) else type(error).__name__
            done.error, done.message = reason, error.strerror or str(error)
        return done

    def _all_rounds(self, topic: topic_pb2.Topic, done: TopicExport) -> None:
        files.topic_dir(topic.name)
        end_seq = topic.head_seq + 1
        for epoch, first_seq in self._history(topic.name).planned:
            if epoch != topic.epoch:
                self._abandon(topic.name, epoch, first_seq, done)
        history = self._history(topic.name)
        if history.bookmark(topic.epoch) is None and (before := history.other_epoch(topic.epoch)) is not None:
            done.recreated_from = before
            self._tell(
                f"{topic.name}: recreated since the last export: epoch {topic.epoch}, not {before}; restarting its export"
            )
        self._check_identity(topic, history)
        while (plan := self._next_plan(topic, end_seq)) is not None:
            self._tell(f"{topic.name}: {plan.span.length:,} records from {plan.span.first_seq:,} on")
            manifest = self._carry_out(plan)
            done.add(manifest)

    def _history(self, topic: str) -> files.History:
        return files.history_of(topic, self._out.files(files.state_dir(topic)))

    def _next_plan(self, topic: topic_pb2.Topic, end_seq: int) -> Plan | None:
        """The plan to carry out next; None = all is exported."""
        while True:
            history = self._history(topic.name)
            first_seq = history.bookmark(topic.epoch)
            if first_seq is not None and first_seq > end_seq:
                self._check_head(topic, first_seq)
            planned = [first for epoch, first in history.planned if epoch == topic.epoch]
            if planned:
                return self._read_plan(topic.name, topic.epoch, planned[0])
            if first_seq is None:
                first_seq = int(topic.earliest_seq)
            if first_seq >= end_seq:
                return None
            plan = self._plan(topic, first_seq, min(end_seq, first_seq + self._sizes.records_per_round))
            name = files.plan_name(topic.name, topic.epoch, first_seq)
            # Where somebody else was first, his plan is the one; he may have carried it out already.
            self._out.create(name, files.plan_to_json(plan))

    def _check_identity(self, topic: topic_pb2.Topic, history: files.History) -> None:
        """Two stores may have topics of one name and one epoch."""
        firsts = [first for epoch, first in history.planned if epoch == topic.epoch]
        first_seq = firsts[0] if firsts else history.last_first(topic.epoch)
        if first_seq is None:
            return
        created_ms = self._read_plan(topic.name, topic.epoch, first_seq).created_ms
        if created_ms != topic.create_ts_ms:
            raise WorkRefused(
                "OTHER_TOPIC",
                f"{self._out.out} has exports of another topic {topic.name}, of the same epoch and another store."
                " Export to another directory",
            )

    def _check_head(self, topic: topic_pb2.Topic, first_seq: int) -> None:
        """Another run may have gone further meanwhile, to a head of after this run's."""
        with self._open_cluster() as cluster:
            now = cluster.get_topic(topic.name)
        if now.epoch == topic.epoch and first_seq > now.head_seq + 1:
            raise CursorAhead(
                f"topic {topic.name} is exported up to {first_seq - 1}, and its head is {now.head_seq}: the store has"
                " lost records that were exported (was an older copy of it restored?). Export to another directory",
                headSeq=now.head_seq,
            )

    def _plan(self, topic: topic_pb2.Topic, first_seq: int, end_seq: int) -> Plan:
        whole = TopicSplit(topic.name, topic.epoch, first_seq, end_seq - 1)
        with self._open_cluster() as cluster:
            pieces = plan_pieces(
                cluster,
                whole,
                records=ALL_RECORDS,
                records_max=self._sizes.records_per_file,
                bytes_max=self._sizes.bytes_per_file,
            )
        return Plan.of(Span(topic.name, topic.epoch, first_seq, end_seq), pieces, created_ms=topic.create_ts_ms)

    def _read_plan(self, topic: str, epoch: int, first_seq: int) -> Plan:
        name = files.plan_name(topic, epoch, first_seq)
        return files.plan_from_json(self._out.read(name), name)

    def _carry_out(self, plan: Plan) -> Manifest:
        lines: list[Line] = []
        rows = 0
        for wave in self._write_splits(plan):
            lines += wave
            rows += sum(count_in(line, "rows") for line in wave)
            self._tell(
                f"{plan.span.topic}: {rows:,} of {plan.span.length:,} records, {len(lines)} of {len(plan.splits)} splits"
            )
        manifest = _manifest_of(plan, lines)
        self._check_files(manifest)
        self._remove_leftovers(manifest)
        self._out.write(files.manifest_name(plan.span), files.manifest_to_json(manifest))
        return manifest

    def _check_files(self, manifest: Manifest) -> None:
        for file, size in zip(manifest.files, self._out.sizes([file.name for file in manifest.files]), strict=True):
            if size != file.bytes:
                raise WorkRefused(
                    "FILE_CHANGED",
                    f"{file.name} was written with {file.bytes} bytes, has {size}: another process writes here; run again",
                )

    def _remove_leftovers(self, manifest: Manifest) -> None:
        names = self._out.files(files.topic_dir(manifest.span.topic))
        for name in files.leftovers(names, manifest.span, [file.name for file in manifest.files]):
            self._out.remove(name)
        long_ago_s = self._clock.now_ms() / 1_000 - WRITING_S_MAX
        for name in files.temporary_names(names):
            if self._out.modified_s(name) < long_ago_s:
                self._out.remove(name)

    def _abandon(self, topic: str, epoch: int, first_seq: int, done: TopicExport) -> None:
        """Close the range of a topic that is gone, with what is there of it."""
        plan = self._read_plan(topic, epoch, first_seq)
        span = plan.span
        if self._on_gap == "fail":
            raise WorkRefused(
                GAP_REFUSED,
                f"topic {topic} was deleted before seq {span.first_seq} to {span.end_seq - 1} of its epoch {epoch} were all"
                " exported. --on-gap warn or rows closes this range with the exported part and continues",
            )
        kept = _kept_parts(self._out, plan)
        rows = sum(file.rows for file in kept)
        lost = (LostRange(span.first_seq, span.end_seq - 1, "TOPIC_DELETED"),)
        manifest = Manifest(span, rows, span.length - rows, 0, kept, lost, abandoned=True)
        self._remove_leftovers(manifest)
        self._out.write(files.manifest_name(span), files.manifest_to_json(manifest))
        done.abandoned.append({"epoch": epoch, "rows": rows, "gaps": manifest.gaps})
        self._tell(f"{topic}: epoch {epoch} is gone: {rows} of {span.length} records of its last range were exported")


def _kept_parts(out: OutDir, plan: Plan) -> tuple[PartFile, ...]:
    """Finished files of a plan's splits, as they say of themselves."""

    span = plan.span
    of_span = files.leftovers(out.files(files.topic_dir(span.topic)), span, ())
    return tuple(
        read_part_file(out, name) for name in of_span if name.endswith(".parquet") and files.NO_DAY not in name
    )


def _manifest_of(plan: Plan, lines: Sequence[Line]) -> Manifest:
    if sorted(count_in(line, "first") for line in lines) != [split[0] for split in plan.splits]:
        raise Internal(f"topic {plan.span.topic}: {len(lines)} answers to {len(plan.splits)} splits")
    ordered = sorted(lines, key=lambda line: count_in(line, "first"))
    parts: list[PartFile] = []
    lost: list[LostRange] = []
    for line in ordered:
        listed, told = line["files"], line["lost"]
        assert isinstance(listed, list)
        assert isinstance(told, list)
        parts += [PartFile(**file) for file in listed]
        lost += [LostRange(**gap) for gap in told]
    rows, gaps, deleted = (sum(count_in(line, name) for line in ordered) for name in ("rows", "gaps", "deleted"))
    if rows + gaps + deleted != plan.span.length:
        raise Internal(f"topic {plan.span.topic}: {rows} + {gaps} + {deleted} do not add up to {plan.span.length}")
    gap_rows = sum(count_in(line, "gap_rows") for line in ordered)
    return Manifest(plan.span, rows, gaps, deleted, tuple(parts), tuple(lost[: files.LOST_LISTED_MAX]), gap_rows)


def count_in(line: Line, name: str) -> int:
    """A number of a line."""
    found = line[name]
    assert isinstance(found, int)
    return found


def summary(done: Sequence[TopicExport], out: str) -> dict[str, object]:
    """The result of a run: sums, and each topic that gave or refused something."""
    sums = {
        name: sum(getattr(topic, name) for topic in done)
        for name in ("rows", "gaps", "deleted", "gap_rows", "files", "bytes")
    }
    changed = [asdict(topic) for topic in done if topic.end_seq or topic.error or topic.abandoned]
    failed = sum(1 for topic in done if topic.error)
    return {"out": out, "topics": len(done), "failed": failed, **sums, "exported": changed}
