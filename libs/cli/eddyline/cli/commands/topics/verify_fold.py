"""`eddyline verify-fold`: whether a KV topic's live values are what its base and log give."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from eddyline.cli.command import add_verb, connected
from eddyline.cli.errors import EXIT_FAILED, EXIT_OK, CommandError
from eddyline.cli.terminal.progress import ProgressReporter, share
from eddyline.core.model.fold_check import FoldVerdict

if TYPE_CHECKING:
    import argparse

    from eddyline.cli.command import Context, Subparsers
    from eddyline.client.connect import Client

_MORE: Final = """

The store builds the fold a second time and compares; nothing is changed, and appends go on meanwhile. Progress is on
stderr. JSON (-o json): {"topic", "finding"} a finding, at most 100; then topic, equal, fold_seq, base_seq (0 = from the log
alone), entry_count, differing_count."""


def add(subparsers: Subparsers) -> None:
    parser = add_verb(
        subparsers,
        "verify-fold",
        what="Compare a KV topic's live values with its log; exit code 1 if they differ, a line a finding.",
        example="eddyline verify-fold prices",
        run=run,
        more=_MORE,
    )
    parser.add_argument("topic", metavar="TOPIC")


async def run(arguments: argparse.Namespace, context: Context) -> int:
    async with connected(arguments, context, topic=arguments.topic) as client:
        verdict = await _verdict(client, arguments.topic, ProgressReporter(context.clock))
    for finding in verdict.findings:
        context.output.print_result(finding, {"topic": arguments.topic, "finding": finding})
    base = f"the base at {verdict.base_seq} and the log" if verdict.base_seq else "the log"
    differing = verdict.differing_count
    text = (
        f"{differing} of {verdict.entry_count} entries differ" if differing else f"{verdict.entry_count} entries, equal"
    )
    context.output.print_result(
        f"{arguments.topic}: {text} (at {verdict.fold_seq}, from {base})",
        {
            "topic": arguments.topic,
            "equal": not differing,
            "fold_seq": verdict.fold_seq,
            "base_seq": verdict.base_seq,
            "entry_count": verdict.entry_count,
            "differing_count": differing,
        },
    )
    return EXIT_FAILED if differing else EXIT_OK


async def _verdict(client: Client, topic: str, progress: ProgressReporter) -> FoldVerdict:
    async with aclosing(client.verify_fold(topic)) as steps:
        async for step in steps:
            if isinstance(step, FoldVerdict):
                return step
            replayed = f"replayed {step.replayed_seq} of {step.target_seq}"
            compared = f", {step.compared_count} entries compared" if step.compared_count else ""
            progress.tell(f"verifying {topic}: {share(step.replayed_seq, step.target_seq)}, {replayed}{compared}")
    raise CommandError(f"the store ended the check of {topic} without a result", "try again")
