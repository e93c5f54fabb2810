"""`eddyline verify`: whether what sources copied is what their buckets have; and a repair where it is not."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from eddyline.cli.command import add_verb, connected, whole_number
from eddyline.cli.commands.sources.difference import example_lines, kinds_text, listed
from eddyline.cli.commands.sources.source import DIFFERENCES_MAX, SETTLE_MS_MAX
from eddyline.cli.commands.sources.source_page import STANDING
from eddyline.cli.errors import EXIT_FAILED, EXIT_OK, CommandError
from eddyline.cli.terminal.output import Json, put_bytes
from eddyline.cli.terminal.progress import ProgressReporter, share
from eddyline.cli.terminal.units import pluralize
from eddyline.core.errors import EddylineError
from eddyline.core.runtime.text import printable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from eddyline.cli.command import Context, Subparsers
    from eddyline.cli.terminal.output import Output
    from eddyline.client.admin.source_check import Difference, SourceProgress, SourceVerdict
    from eddyline.client.connect import Client

REFUSES_REPAIR: Final = ("STREAM_RECREATED", "CURSOR_AHEAD", "CURSOR_EXPIRED")
"""States in which only a resync that somebody asks for takes what the bucket has now."""
PREFIXES_SHOWN: Final = 20
"""To people; programs get all."""
NO_PREFIX: Final = "keys without a prefix"

_EXAMPLE: Final = """
eddyline verify certs
eddyline verify certs --repair --dry-run
eddyline verify certs --repair
eddyline verify --all -o json"""
_MORE: Final = """

Says the outcome in a sentence, then ten of the keys that differ: "only in the bucket", "only in the fold", "differs".
Counts and hashes of both sides are compared first, then the keys where those differ. Appends and reads go on meanwhile;
keys that are under way get time to settle. --repair has the source's holder resync where keys differ, and says what is
left. Progress is on stderr. Exit code 1 if keys differ at the end. Keys whose newest message became a dead letter are told
and are no drift. A source that stands in STREAM_RECREATED, CURSOR_AHEAD or CURSOR_EXPIRED is not repaired: what its bucket
has now is taken by `eddyline source resync` alone.

JSON (-o json): {"source", "kind", "key", "bucket_revision", "fold_revision", "left"} a finding (left = after a repair);
{"source", "prefix", "bucket_count", "fold_count", "difference_count"} a prefix with findings; then source, equal,
bucket_count, fold_count, difference_count, of which missing_count (only in the bucket), surplus_count (only in the fold)
and value_count, left_count, dry_run, repaired, repair_trouble (why there was none), unsettled_count
(changed at each check), unexamined_count and unconfirmed_count (too many to look at), dead_letter_count, position_revision,
source_status and source_reason (as its holder reported it), left_bucket_count and left_fold_count (after a repair; the other
counts are those before). A prefix is a key through its first dot; one without findings is not listed. With --all also
{"source", "reason", "message"} where one could not be verified, {"source", "skipped"} where it copies a stream."""


def add(subparsers: Subparsers) -> None:
    parser = add_verb(
        subparsers,
        "verify",
        what="Compare the topics of sources with their buckets; exit code 1 if keys differ.",
        example=_EXAMPLE,
        run=run,
        more=_MORE,
    )
    parser.add_argument("source", metavar="SOURCE", nargs="?", default="")
    parser.add_argument("--all", action="store_true", help="every source that copies a bucket, one after the other")
    parser.add_argument("--repair", action="store_true", help="resync the source where keys differ")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="with --repair: change nothing, print the keys that a repair would write and delete",
    )
    parser.add_argument(
        "--settle-ms", type=_settle_ms, default=0, metavar="MS", help="time for changes under way (default: 5000)"
    )
    parser.add_argument(
        "--limit",
        type=_limit,
        default=0,
        metavar="N",
        help="most differences to list a source (default: 10, of JSON 100)",
    )
    parser.set_defaults(contradiction=_contradiction)


def _contradiction(arguments: argparse.Namespace) -> str:
    if bool(arguments.source) == arguments.all:
        return "give one SOURCE, or --all"
    if arguments.dry_run and not arguments.repair:
        return "--dry-run needs --repair: give both"
    return ""


def _settle_ms(text: str) -> int:
    return whole_number(text, 0, SETTLE_MS_MAX)


def _limit(text: str) -> int:
    return whole_number(text, 1, DIFFERENCES_MAX)


async def run(arguments: argparse.Namespace, context: Context) -> int:
    async with connected(arguments, context) as client:
        if not arguments.all:
            verdict = await _verdict(client, arguments.source, arguments, context)
            return _say(context.output, arguments.source, verdict, is_dry=arguments.dry_run)
        codes = [EXIT_OK]
        sources = await client.sources.list()
        if not sources:
            context.output.print_text("no sources; make one with `eddyline source create NAME --bucket BUCKET`")
        for source in sources:
            name = source.definition.name
            if source.definition.stream:
                context.output.print_notice(
                    f"{name} copies a stream: nothing to compare", {"source": name, "skipped": True}
                )
                continue
            try:
                verdict = await _verdict(client, name, arguments, context)
            except EddylineError as error:
                fields: dict[str, Json] = {"source": name, "reason": error.reason, "message": error.message}
                context.output.print_result(f"{name}: not verified, {error.reason}: {error.message}", fields)
                codes.append(EXIT_FAILED)
            else:
                codes.append(_say(context.output, name, verdict, is_dry=arguments.dry_run))
    return max(codes)


async def _verdict(client: Client, name: str, arguments: argparse.Namespace, context: Context) -> SourceVerdict:
    from eddyline.client.admin.source_check import SourceVerdict

    progress = ProgressReporter(context.clock)
    limit = listed(arguments.limit, is_json=context.output.is_json)
    repair = arguments.repair and not arguments.dry_run
    steps = client.sources.verify(name, repair=repair, settle_ms=arguments.settle_ms, limit=limit)
    async with aclosing(steps):
        async for step in steps:
            if isinstance(step, SourceVerdict):
                return step
            progress.tell(f"verifying {name}: {_progress_text(step)}")
    raise CommandError(f"ingest ended the verification of {name} without a result", "try again")


def _progress_text(step: SourceProgress) -> str:
    if step.stage == "REPAIR":
        return f"waiting for the resync of {pluralize(step.suspect_count, 'key')}"
    if step.stage == "COUNTS":
        return "beginning, or waiting for another verification"
    what = "sums" if step.stage == "HASHES" else pluralize(step.suspect_count, "key")
    done, total = step.bucket_read + step.fold_read, step.bucket_total + step.fold_total
    return f"{what}, {share(done, total)}, bucket {step.bucket_read} of {step.bucket_total}, fold {step.fold_read}"


def _say(output: Output, name: str, verdict: SourceVerdict, *, is_dry: bool = False) -> int:
    """Say what was found; the exit code. To people the sentence first, then examples."""
    text = _text(verdict) + (_dry_text(verdict) if is_dry else "")
    if output.is_json:
        _say_findings(output, name, verdict.differences, is_left=False)
        _say_prefixes(output, name, verdict)
        _say_findings(output, name, verdict.left, is_left=True)
        output.print_result("", _fields(name, verdict, is_dry=is_dry))
    else:
        lines = [f"{name}: {text}"]
        lines += example_lines(verdict.differences, verdict.difference_count + verdict.dead_letter_count)
        if verdict.left:
            lines += example_lines(verdict.left, verdict.left_count, still=True)
        output.print_text("\n".join(lines))
        _say_prefixes(output, name, verdict)
    return EXIT_OK if verdict.is_right else EXIT_FAILED


def _say_prefixes(output: Output, name: str, verdict: SourceVerdict) -> None:
    for one in verdict.prefixes if output.is_json else verdict.prefixes[:PREFIXES_SHOWN]:
        fields: dict[str, Json] = {"source": name}
        put_bytes(fields, "prefix", one.prefix)
        fields |= {
            "bucket_count": one.bucket_count,
            "fold_count": one.fold_count,
            "difference_count": one.difference_count,
        }
        counts = (
            f"{one.difference_count} differ, bucket {one.bucket_count} of {pluralize(verdict.bucket_count, 'key')}, "
            f"fold {one.fold_count} of {verdict.fold_count}"
        )
        output.print_result(
            f"{name}: {f'below {printable(one.prefix)}' if one.prefix else NO_PREFIX}: {counts}", fields
        )
    if len(verdict.prefixes) > PREFIXES_SHOWN:
        more = pluralize(len(verdict.prefixes) - PREFIXES_SHOWN, "prefix")
        output.print_text(f"{name}: and {more} more")


def _fields(name: str, verdict: SourceVerdict, *, is_dry: bool) -> dict[str, Json]:
    return {
        "source": name,
        "equal": verdict.is_right and not verdict.repaired,
        "bucket_count": verdict.bucket_count,
        "fold_count": verdict.fold_count,
        "difference_count": verdict.difference_count,
        "missing_count": verdict.missing_count,
        "surplus_count": verdict.surplus_count,
        "value_count": verdict.value_count,
        "left_count": verdict.left_count,
        "dry_run": is_dry,
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
    }


def _dry_text(verdict: SourceVerdict) -> str:
    """The keys that a repair would write or delete."""
    if verdict.is_right:
        return "; a repair would change nothing"
    if verdict.source_status in REFUSES_REPAIR:
        return f"; a repair would be refused, since the source is {verdict.source_status}"
    writes = pluralize(verdict.missing_count + verdict.value_count, "key")
    return f"; a repair would write {writes} and delete {verdict.surplus_count}; nothing was changed"


def _say_findings(output: Output, name: str, differences: Sequence[Difference], *, is_left: bool) -> None:
    for one in differences:
        fields: dict[str, Json] = {"source": name, "kind": one.kind}
        put_bytes(fields, "key", one.key)
        fields |= {"bucket_revision": one.bucket_revision, "fold_revision": one.fold_revision, "left": is_left}
        output.print_result("", fields)


def _text(verdict: SourceVerdict) -> str:
    kinds = kinds_text(verdict.missing_count, verdict.surplus_count, verdict.value_count)
    counts = f"{_counts(verdict.bucket_count, verdict.fold_count)}, at revision {verdict.position_revision}"
    keys, differ = pluralize(verdict.difference_count, "key"), "differs" if verdict.difference_count == 1 else "differ"
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
        told = [f"{keys} {differ}{f': {kinds}' if kinds else ''} ({counts})"]
    if verdict.unsettled_count:
        told.append(f"{verdict.unsettled_count} changed at each check")
    if verdict.unexamined_count:
        told.append(f"about {verdict.unexamined_count} more in groups that differ were not checked")
    if verdict.unconfirmed_count:
        told.append(f"{verdict.unconfirmed_count} were checked once")
    if verdict.dead_letter_count:
        told.append(f"{verdict.dead_letter_count} are dead letters")
    if verdict.source_status in STANDING and not verdict.repair_trouble:
        reason = f": {verdict.source_reason}" if verdict.source_reason else ""
        told.append(f"the source is {verdict.source_status}{reason}")
    return "; ".join(told)


def _counts(bucket: int, fold: int) -> str:
    return f"bucket {pluralize(bucket, 'key')}, fold {pluralize(fold, 'key')}"
