"""`eddyline verify`: whether what sources copied is what their buckets have; and a repair where it is not."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from eddyline.cli.failure import EXIT_FAILED, EXIT_OK, CommandError
from eddyline.cli.output import Json, put_bytes
from eddyline.cli.progress import Progress, share
from eddyline.cli.quantity import counted
from eddyline.cli.source import DIFFERENCES_MAX, SETTLE_MS_MAX
from eddyline.cli.source_page import STANDING
from eddyline.cli.verb import add_verb, connected, whole_number
from eddyline.core.errors import EddylineError
from eddyline.core.shown import shown_bytes

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from eddyline.cli.output import Output
    from eddyline.cli.verb import Context, Subparsers
    from eddyline.client.connect import Client
    from eddyline.client.source_check import Difference, SourceProgress, SourceVerdict

PREFIXES_SHOWN: Final = 20
"""To people; programs get all."""
NO_PREFIX: Final = "keys without a prefix"

_MORE: Final = """

Counts and hashes of both sides first, then the keys where those differ. Appends and reads go on meanwhile; keys that are
under way get time to settle. --repair has the source's holder resync where keys differ, and says what is left. Progress
is on stderr. Exit code 1 if keys differ at the end. Keys whose newest message became a dead letter are told and are no
drift. A source that stands in STREAM_RECREATED, CURSOR_AHEAD or CURSOR_EXPIRED is not repaired: what its bucket has now is
taken by `eddyline source resync` alone.

JSON (-o json): {"source", "kind", "key", "bucket_revision", "fold_revision", "left"} a finding (left = after a repair);
{"source", "prefix", "bucket_count", "fold_count", "difference_count"} a prefix with findings; then source, equal,
bucket_count, fold_count, difference_count, left_count, repaired, repair_trouble (why there was none), unsettled_count
(changed at each look), unexamined_count and unconfirmed_count (too many to look at), dead_letter_count, position_revision,
source_status and source_reason (as its holder reported it), left_bucket_count and left_fold_count (after a repair; the other
counts are those before). A prefix is a key through its first dot; one without findings is not listed. With --all also
{"source", "reason", "message"} where one could not be verified, {"source", "skipped"} where it copies a stream."""


def add(subparsers: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(
        subparsers,
        "verify",
        what="Compare what sources copied with their buckets; exit code 1 if keys differ, a line a finding.",
        example="eddyline verify certs\neddyline verify certs --repair\neddyline verify --all -o json",
        run=run,
        more=_MORE,
    )
    parser.add_argument("source", metavar="SOURCE", nargs="?", default="")
    parser.add_argument("--all", action="store_true", help="every source that copies a bucket, one after the other")
    parser.add_argument("--repair", action="store_true", help="resync the source where keys differ")
    parser.add_argument(
        "--settle-ms", type=_settle_ms, default=0, metavar="MS", help="time for changes under way (default: 5000)"
    )
    parser.add_argument(
        "--limit", type=_limit, default=0, metavar="N", help="most differences to list a source (default: 100)"
    )
    parser.set_defaults(contradiction=_contradiction)


def _contradiction(arguments: argparse.Namespace) -> str:
    if bool(arguments.source) == arguments.all:
        return "name one SOURCE, or ask for --all"
    return ""


def _settle_ms(text: str) -> int:
    return whole_number(text, 0, SETTLE_MS_MAX)


def _limit(text: str) -> int:
    return whole_number(text, 1, DIFFERENCES_MAX)


async def run(arguments: argparse.Namespace, context: Context) -> int:
    """Verify."""
    async with connected(arguments, context) as client:
        if not arguments.all:
            verdict = await _verdict(client, arguments.source, arguments, Progress(context.clock))
            return _say(context.output, arguments.source, verdict)
        codes = [EXIT_OK]
        sources = await client.sources.list()
        if not sources:
            context.output.say_text("no sources; make one with `eddyline source create NAME --bucket BUCKET`")
        for source in sources:
            name = source.definition.name
            if source.definition.stream:
                context.output.say_aside(
                    f"{name} copies a stream: nothing to compare", {"source": name, "skipped": True}
                )
                continue
            try:
                verdict = await _verdict(client, name, arguments, Progress(context.clock))
            except EddylineError as error:
                fields: dict[str, Json] = {"source": name, "reason": error.reason, "message": error.message}
                context.output.say(f"{name}: not verified, {error.reason}: {error.message}", fields)
                codes.append(EXIT_FAILED)
            else:
                codes.append(_say(context.output, name, verdict))
    return max(codes)


async def _verdict(client: Client, name: str, arguments: argparse.Namespace, progress: Progress) -> SourceVerdict:
    from eddyline.client.source_check import SourceVerdict

    steps = client.sources.verify(name, repair=arguments.repair, settle_ms=arguments.settle_ms, limit=arguments.limit)
    async with aclosing(steps):
        async for step in steps:
            if isinstance(step, SourceVerdict):
                return step
            progress.tell(f"verifying {name}: {_progress_text(step)}")
    raise CommandError(f"ingest ended the verification of {name} without a verdict", "try again")


def _progress_text(step: SourceProgress) -> str:
    if step.stage == "REPAIR":
        return f"waiting for the resync of {counted(step.suspect_count, 'key')}"
    if step.stage == "COUNTS":
        return "beginning, or waiting for another verification"
    what = "sums" if step.stage == "HASHES" else counted(step.suspect_count, "key")
    done, total = step.bucket_read + step.fold_read, step.bucket_total + step.fold_total
    return f"{what}, {share(done, total)}, bucket {step.bucket_read} of {step.bucket_total}, fold {step.fold_read}"


def _say(output: Output, name: str, verdict: SourceVerdict) -> int:
    """Say what was found; the exit code."""
    _say_findings(output, name, verdict.differences, is_left=False)
    for one in verdict.prefixes if output.is_json else verdict.prefixes[:PREFIXES_SHOWN]:
        fields: dict[str, Json] = {"source": name}
        put_bytes(fields, "prefix", one.prefix)
        fields |= {
            "bucket_count": one.bucket_count,
            "fold_count": one.fold_count,
            "difference_count": one.difference_count,
        }
        counts = (
            f"{one.difference_count} differ, bucket {one.bucket_count} of {counted(verdict.bucket_count, 'key')}, "
            f"fold {one.fold_count} of {verdict.fold_count}"
        )
        output.say(f"{name}: {f'below {shown_bytes(one.prefix)}' if one.prefix else NO_PREFIX}: {counts}", fields)
    if len(verdict.prefixes) > PREFIXES_SHOWN:
        more = counted(len(verdict.prefixes) - PREFIXES_SHOWN, "prefix")
        output.say_text(f"{name}: and {more} more")
    _say_findings(output, name, verdict.left, is_left=True)
    output.say(
        f"{name}: {_text(verdict)}",
        {
            "source": name,
            "equal": verdict.is_right and not verdict.repaired,
            "bucket_count": verdict.bucket_count,
            "fold_count": verdict.fold_count,
            "difference_count": verdict.difference_count,
            "left_count": verdict.left_count,
            "repaired": verdict.repaired,
            "repair_trouble": verdict.repair_trouble,
            "unsettled_count": verdict.unsettled_count,
            "unexamined_count": verdict.unexamined_count,
            "unconfirmed_count": verdict.unconfirmed_count,
            "dead_letter_count": verdict.dead_letter_count,
            "position_revision": verdict.position_revision,
            "source_status": verdict.source_status,
            "source_reason": verdict.source_reason,
            "left_bucket_count": verdict.left_bucket_count,
            "left_fold_count": verdict.left_fold_count,
        },
    )
    return EXIT_OK if verdict.is_right else EXIT_FAILED


def _say_findings(output: Output, name: str, differences: Sequence[Difference], *, is_left: bool) -> None:
    for one in differences:
        fields: dict[str, Json] = {"source": name, "kind": one.kind}
        put_bytes(fields, "key", one.key)
        fields |= {"bucket_revision": one.bucket_revision, "fold_revision": one.fold_revision, "left": is_left}
        revisions = f"bucket {one.bucket_revision}, fold {one.fold_revision}"
        still = "still " if is_left else ""
        output.say(f"{name}: {still}{one.kind:<8} {shown_bytes(one.key)}  {revisions}", fields)


def _text(verdict: SourceVerdict) -> str:
    counts = f"{_counts(verdict.bucket_count, verdict.fold_count)}, at revision {verdict.position_revision}"
    keys, differ = counted(verdict.difference_count, "key"), "differs" if verdict.difference_count == 1 else "differ"
    after = _counts(verdict.left_bucket_count, verdict.left_fold_count)
    if not verdict.difference_count:
        told = [f"{'not all compared' if verdict.unexamined_count else 'equal'} ({counts})"]
    elif verdict.repaired:
        told = [f"{keys} differed ({counts})", f"repaired: {after}"]
    elif verdict.repair_trouble:
        told = [f"{keys} {differ}, not repaired: {verdict.repair_trouble} ({counts})"]
    elif verdict.left:
        told = [f"{keys} differed ({counts})", f"after the repair {verdict.left_count} still: {after}"]
    else:
        told = [f"{keys} {differ} ({counts})"]
    if verdict.unsettled_count:
        told.append(f"{verdict.unsettled_count} changed at each look")
    if verdict.unexamined_count:
        told.append(f"about {verdict.unexamined_count} more in groups that differ were not looked at")
    if verdict.unconfirmed_count:
        told.append(f"{verdict.unconfirmed_count} were looked at once")
    if verdict.dead_letter_count:
        told.append(f"{verdict.dead_letter_count} are dead letters")
    if verdict.source_status in STANDING and not verdict.repair_trouble:
        reason = f": {verdict.source_reason}" if verdict.source_reason else ""
        told.append(f"the source is {verdict.source_status}{reason}")
    return "; ".join(told)


def _counts(bucket: int, fold: int) -> str:
    return f"bucket {counted(bucket, 'key')}, fold {counted(fold, 'key')}"
