"""`eddyline fold`: a KV topic's live values as an artifact: export, import, list."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from eddyline.cli.command import add_group, add_verb, connected
from eddyline.cli.errors import EXIT_OK, CommandError
from eddyline.cli.terminal.output import Json, format_time
from eddyline.cli.terminal.progress import ProgressReporter, share
from eddyline.cli.terminal.units import pluralize
from eddyline.core.model.artifact import ArtifactProgress, FoldExported, FoldImported

if TYPE_CHECKING:
    import argparse

    from eddyline.cli.command import Context, Subparsers
    from eddyline.client.transport.items import Items
    from eddyline.core.model.artifact import Artifact

_HEADER: Final = ("ARTIFACT", "SEQ", "ENTRIES", "BYTES", "MADE", "SOURCE", "LATEST")
_FIELDS: Final = (
    "name, topic, epoch, fold_seq, entry_count, file_bytes, created_ms, store_id, source, source_position (hex), latest"
)
_EXPORT: Final = f"""

Artifacts go where the store's EDDYLINE_STORE_ARTIFACTS says, and nowhere else. Appends go on meanwhile; progress is on
stderr. JSON (-o json): {_FIELDS}; superseded (true = a newer artifact was there, and stays the latest),
latest_name."""
_IMPORT: Final = f"""

The topic exists, is a KV topic and never had a record; all of the artifact is checked before anything lands. Its log begins
behind the artifact's fold_seq. (A topic that answers FOLD_LOST takes an artifact of its own, too, and keeps its log.)
A topic with a source takes artifacts of the same source only, and goes on from their position.

JSON (-o json): {_FIELDS}; into, head_seq,
position_set."""


def add(subparsers: Subparsers) -> None:
    verbs = add_group(subparsers, "fold", what="Take a KV topic's live values out of a store, and into one.")
    parser = add_verb(
        verbs,
        "export",
        what="Write a KV topic's live values as an artifact.",
        example="eddyline fold export prices",
        run=export,
        more=_EXPORT,
    )
    parser.add_argument("topic", metavar="TOPIC")
    parser = add_verb(
        verbs,
        "import",
        what="Make an artifact the live values of a new KV topic, or of one that has lost them.",
        example="eddyline fold import prices",
        run=import_,
        more=_IMPORT,
    )
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument(
        "--from", dest="from_topic", default="", metavar="TOPIC", help="whose artifact (default: the same name)"
    )
    parser.add_argument("--artifact", default="", metavar="NAME", help="which one (default: the latest)")
    parser = add_verb(
        verbs, "list", what="List a topic's artifacts, newest first.", example="eddyline fold list prices", run=list_
    )
    parser.add_argument("topic", metavar="TOPIC")


async def export(arguments: argparse.Namespace, context: Context) -> int:
    """Export a fold."""
    async with connected(arguments, context, topic=arguments.topic) as client:
        steps = client.export_fold(arguments.topic)
        done = await _last(steps, f"exporting {arguments.topic}", ProgressReporter(context.clock))
    if not isinstance(done, FoldExported):
        raise CommandError(f"the store ended the export of {arguments.topic} without a result", "try again")
    artifact = done.artifact
    text = f"{artifact.topic}: exported {pluralize(artifact.entry_count, 'entry')} at {artifact.fold_seq} as {artifact.name}"
    if done.superseded:
        text += f"; {done.latest} is newer, and stays the latest"
    fields = {**_fields(artifact), "superseded": done.superseded, "latest_name": done.latest}
    context.output.print_result(text, fields)
    return EXIT_OK


async def import_(arguments: argparse.Namespace, context: Context) -> int:
    """Import a fold."""
    async with connected(arguments, context, topic=arguments.topic) as client:
        steps = client.import_fold(arguments.topic, from_topic=arguments.from_topic, artifact=arguments.artifact)
        done = await _last(steps, f"importing {arguments.topic}", ProgressReporter(context.clock))
    if not isinstance(done, FoldImported):
        raise CommandError(
            f"the store ended the import into {arguments.topic} without a result",
            f"check whether it was imported: eddyline topic get {arguments.topic}",
        )
    artifact, head_seq = done.artifact, done.state.fold_seq
    text = f"{arguments.topic}: imported {pluralize(artifact.entry_count, 'entry')} of {artifact.name}; it is at {head_seq}"
    if done.position_set:
        text += "; its source continues from the artifact's position"
    context.output.print_result(
        text,
        {
            **_fields(artifact),
            "into": arguments.topic,
            "head_seq": head_seq,
            "position_set": done.position_set,
        },
    )
    return EXIT_OK


async def list_(arguments: argparse.Namespace, context: Context) -> int:
    """List artifacts."""
    async with connected(arguments, context, topic=arguments.topic) as client:
        found = await client.list_artifacts(arguments.topic)
        if not found:
            await client.get_topic(arguments.topic)  # artifacts outlive their topic; nothing of either is no topic
            context.output.print_text(f"no artifacts; make one with `eddyline fold export {arguments.topic}`")
    context.output.table(_HEADER, [_row(artifact) for artifact in found], [_fields(artifact) for artifact in found])
    return EXIT_OK


async def _last(
    steps: Items[ArtifactProgress | FoldExported | FoldImported], what: str, progress: ProgressReporter
) -> FoldExported | FoldImported | None:
    """The last item of the stream; the items before it are printed as progress."""
    async with aclosing(steps):
        async for step in steps:
            if not isinstance(step, ArtifactProgress):
                return step
            known = f"{share(step.done_count, step.total_count)}, " if step.total_count else ""
            progress.tell(f"{what}: {step.stage}, {known}{step.done_count}")
    return None


def _row(artifact: Artifact) -> tuple[str, ...]:
    return (
        artifact.name,
        str(artifact.fold_seq),
        str(artifact.entry_count),
        str(artifact.file_bytes),
        format_time(artifact.created_ms),
        artifact.source,
        "yes" if artifact.is_latest else "",
    )


def _fields(artifact: Artifact) -> dict[str, Json]:
    """An artifact as a JSON object."""
    return {
        "name": artifact.name,
        "topic": artifact.topic,
        "epoch": artifact.epoch,
        "fold_seq": artifact.fold_seq,
        "entry_count": artifact.entry_count,
        "file_bytes": artifact.file_bytes,
        "created_ms": artifact.created_ms,
        "store_id": artifact.store_id,
        "source": artifact.source,
        "source_position": artifact.source_position.hex(),
        "latest": artifact.is_latest,
    }
