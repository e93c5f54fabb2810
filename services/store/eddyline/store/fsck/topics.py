"""Check of one topic: consistency of its numbers, its files, and its recounted rows.

Threading: synchronous.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

from eddyline.core.errors import DataCorrupt
from eddyline.core.records.record import Op
from eddyline.store.fsck.findings import ASK
from eddyline.store.fsck.segments import ExpectedFile, check_file
from eddyline.store.log.deletion import visible
from eddyline.store.storage.layout import base_file
from eddyline.store.storage.segment.footer import SegmentSource

if TYPE_CHECKING:
    from pathlib import Path

    from eddyline.core.records.batch import Batch
    from eddyline.store.fsck.findings import Findings
    from eddyline.store.log.topic import Topic
    from eddyline.store.log_io.files import LogFiles
    from eddyline.store.storage.layout import Layout

_SEQ_MAX: Final = (1 << 63) - 1


class TopicCheck:
    """Checks one topic of a directory after the replay of its log."""

    def __init__(self, topic: Topic, files: LogFiles, layout: Layout, findings: Findings, catalog: Path) -> None:
        self._topic = topic
        self._files = files
        self._layout = layout
        self._findings = findings
        self._catalog = catalog
        self._count = 0
        self._bytes = 0
        self.file_count = 0
        self.byte_count = 0

    def run(self, *, missing: set[Path], counts: bool) -> bool:
        """Check everything; return whether every file is valid. `counts` False = the log is damaged, so the totals are
        unknown."""
        valid = self._check_files(missing)
        if counts and valid and not self._topic.is_ephemeral:
            self._check_numbers()
            valid = self._check_frames() and valid
            if valid:
                self._check_totals()
        return valid

    def _check_files(self, missing: set[Path]) -> bool:
        topic, valid = self._topic, True
        source = SegmentSource(topic.id, topic.name, topic.kind.name, topic.config_version, 0)
        for segment in topic.segments:
            if segment.path in missing:
                valid = False
                continue
            summary = segment.summary
            expected = ExpectedFile(
                source._replace(generation=summary.generation), summary, summary.rows, summary.file_bytes
            )
            self.file_count += 1
            self.byte_count += summary.file_bytes
            valid = check_file(self._files.fs, segment.path, expected, self._findings, self._count_rows) and valid
        base = topic.base
        if base is None or not base.rows:
            return valid
        path = base_file(self._layout.topic_dir(topic.id), base.seq, base.generation)
        if path in missing:
            return False
        self.file_count += 1
        self.byte_count += base.file_bytes
        of_base = source._replace(generation=base.generation, is_base=True, base_seq=base.seq)
        expected = ExpectedFile(of_base, None, base.rows, base.file_bytes)
        return check_file(self._files.fs, path, expected, self._findings, lambda batch: None) and valid

    def _check_frames(self) -> bool:
        topic = self._topic
        for entry in topic.index.entries_through(topic.head_seq):
            try:
                self._count_rows(self._files.frame(topic.id, entry.location))
            except DataCorrupt as error:
                file, offset = error.metadata.get("file", self._catalog), error.metadata.get("offset", 0)
                self._findings.error(str(file), error.message, offset=int(offset))
                return False
        return True

    def _count_rows(self, batch: Batch) -> None:
        rows = visible(batch, self._topic.floors, self._topic.deleted_seqs)
        gaps = 0 if rows.ops is None else bytes(rows.ops).count(Op.GAP)
        self._count += rows.count - gaps
        self._bytes += rows.record_bytes if rows.count else 0

    def _check_totals(self) -> None:
        topic = self._topic
        if self._count != topic.record_count:
            self._report(f"has {self._count} live records, by its counter {topic.record_count}")
        if self._bytes != topic.record_bytes:
            self._report(f"has {self._bytes} bytes of live records, by its counter {topic.record_bytes}")

    def _check_numbers(self) -> None:
        topic = self._topic
        trim = topic.floors.trim
        if trim > topic.head_seq:
            self._report(f"has a floor at {trim}, above its head at {topic.head_seq}")
        if topic.segmented_seq > topic.head_seq or topic.segments.last_seq > topic.segmented_seq:
            self._report(
                f"has segments to seq {topic.segments.last_seq}, a segmented seq of {topic.segmented_seq}, and its "
                f"head at {topic.head_seq}"
            )
        for one, other in pairwise(topic.segments):
            if other.summary.first_seq <= one.summary.last_seq:
                self._report(f"has segments that overlap: {one.path.name} and {other.path.name}")
        generations = [segment.summary.generation for segment in topic.segments]
        if topic.base is not None:
            generations.append(topic.base.generation)
        if generations and max(generations) >= topic.next_generation:
            self._report(f"has a file of generation {max(generations)}, and its next one is {topic.next_generation}")
        if topic.deleted_seqs.count(topic.head_seq + 1, _SEQ_MAX) or topic.uncounted.count(
            topic.head_seq + 1, _SEQ_MAX
        ):
            self._report(f"has deleted seqs above its head at {topic.head_seq}")
        both = topic.uncounted.union(topic.deleted_seqs)
        if both.count(trim + 1, _SEQ_MAX) != topic.uncounted.count(trim + 1, _SEQ_MAX):
            self._report("has deleted seqs that its counters include")

    def _report(self, what: str) -> None:
        self._findings.error(self._catalog, f"topic {self._topic.name} {what}", to_do=ASK)
