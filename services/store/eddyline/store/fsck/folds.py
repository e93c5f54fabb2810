"""Check of every KV topic's fold against base and log, by a second fold in a temporary directory.

Threading: synchronous.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from eddyline.core.errors import DataCorrupt
from eddyline.store.fold.fold import FoldFailed
from eddyline.store.fold_repair.check import run_fold_check
from eddyline.store.fold_repair.source import FoldSource

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from eddyline.store.fold.fold import Fold
    from eddyline.store.fsck.findings import Findings
    from eddyline.store.log.topic import Topic
    from eddyline.store.log_io.files import LogFiles
    from eddyline.store.storage.layout import Layout

_REBUILD_AT_START: Final = "start the store: it moves the fold to orphans/, and rebuilds it from bases and log"
_MOVE_AWAY: Final = "move the fold's directory out of the data directory: the next start rebuilds it from bases and log"
_CHECK_AGAIN: Final = "the last stop was not clean: start the store, stop it, and check again"
_REPLAYED_AT_START: Final = "nothing: the next start applies the log to it"
_GAP_AT_START: Final = "nothing: the next start keeps the fold, and reports the lost part of the log as a gap UNSYNCED"


class FoldsCheck:
    """Checks the folds of one directory."""

    def __init__(
        self,
        path: Path,
        files: LogFiles,
        layout: Layout,
        findings: Findings,
        *,
        open_fold: Callable[[Path], Fold],
        open_scratch: Callable[[], Fold],
        clean: bool,
    ) -> None:
        self._path = path
        self._files = files
        self._layout = layout
        self._findings = findings
        self._open_fold = open_fold
        self._open_scratch = open_scratch
        self._clean = clean

    def run(self, topics: Sequence[Topic], *, store_id: str, progress: Callable[[str], None]) -> None:
        """Check that the fold opens and belongs to the store, then compare each of `topics`."""
        if not self._path.exists():
            if topics:
                self._findings.note(self._path, "the fold is missing", to_do=_REPLAYED_AT_START)
            return
        try:
            fold = self._open_fold(self._path)
        except (DataCorrupt, FoldFailed) as error:
            self._findings.error(self._path, str(error), to_do=_REBUILD_AT_START)
            return
        scratch = self._open_scratch()
        try:
            if store_id and fold.store_id() not in ("", store_id):
                what = f"it belongs to store {fold.store_id()}, the catalog to store {store_id}"
                self._findings.error(self._path, what, to_do="put back the directory that belongs to this store")
                return
            for number, topic in enumerate(topics, 1):
                progress(f"fold {number} of {len(topics)}")
                self._compare(topic, fold, scratch)
        except (DataCorrupt, FoldFailed) as error:
            self._findings.error(self._path, str(error), to_do=_REBUILD_AT_START)
        finally:
            scratch.close()
            fold.close()

    def _compare(self, topic: Topic, fold: Fold, scratch: Fold) -> None:
        if topic.fold_lost:
            what = f"the fold of topic {topic.name} is lost: reads of it are refused"
            self._findings.warning(
                self._path, what, to_do="accept the remaining entries (SettleFold), or import an artifact"
            )
            return
        applied = fold.applied(topic.id)
        what = f"the fold of topic {topic.name} is at seq {applied}, its log at {topic.head_seq}"
        if applied > topic.head_seq:
            self._findings.warning(self._path, f"{what}: the log has lost its end", to_do=_GAP_AT_START)
            return
        if applied < topic.head_seq:
            self._findings.note(self._path, what, to_do=_REPLAYED_AT_START)
            return
        source = FoldSource(self._files, self._layout, topic, through_seq=topic.head_seq)
        view = fold.view(topic.id, counted=False)
        try:
            verdict = run_fold_check(topic.id, source=source, actual=view, scratch=scratch)
        finally:
            view.close()
            source.close()
        if not verdict.differing_count:
            return
        what = f"the fold of topic {topic.name} differs from base and log in {verdict.differing_count} keys: "
        what += ", ".join(verdict.findings[:3])
        if self._clean:
            self._findings.error(self._path, what, to_do=_MOVE_AWAY)
        else:
            self._findings.warning(self._path, what, to_do=_CHECK_AGAIN)
