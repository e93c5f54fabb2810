"""`eddyline settle-fold`: an operator's way back from a lost fold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from eddyline.cli.command import add_verb, connected
from eddyline.cli.errors import EXIT_OK
from eddyline.cli.terminal.confirm import add_yes, confirm

if TYPE_CHECKING:
    import argparse

    from eddyline.cli.command import Context, Subparsers
    from eddyline.core.model.fold_check import FoldSettled

_MORE: Final = """

For a topic that answers FOLD_LOST. Keys whose last write neither base nor log has are missing from then on, and nothing
else reports it: restore a copy instead, or write the keys again from where they come from, if you can. A fold that is not
lost is left as it is.

JSON (-o json): topic, settled, base_seq (0 = from the log alone), log_first_seq, fold_seq, epoch."""


def add(subparsers: Subparsers) -> None:
    parser = add_verb(
        subparsers,
        "settle-fold",
        what="Accept the loss of a KV topic's live values and serve those that base and log still give; asks first "
        "on a terminal.",
        example="eddyline settle-fold prices",
        run=run,
        more=_MORE,
    )
    parser.add_argument("topic", metavar="TOPIC")
    add_yes(parser)


async def run(arguments: argparse.Namespace, context: Context) -> int:
    async with connected(arguments, context, topic=arguments.topic) as client:
        topic = await client.get_topic(arguments.topic)
        await confirm(f"accept what is left as the live values of {topic.name}, if they are lost?", arguments)
        settled = await client.settle_fold(topic.name, if_epoch=topic.epoch)
    context.output.print_result(
        _text(topic.name, settled),
        {
            "topic": topic.name,
            "settled": settled.settled,
            "base_seq": settled.base_seq,
            "log_first_seq": settled.log_first_seq,
            "fold_seq": settled.state.fold_seq,
            "epoch": settled.state.epoch,
        },
    )
    return EXIT_OK


def _text(name: str, settled: FoldSettled) -> str:
    if not settled.settled:
        return f"{name}: the fold is not lost; it stays as it is"
    base = f"the base at {settled.base_seq} and the log" if settled.base_seq else "the log"
    text = f"{name}: settled at {settled.state.fold_seq}, from {base} from {settled.log_first_seq} on"
    if settled.log_first_seq > settled.base_seq + 1:
        text += f"; values written only by {settled.base_seq + 1} to {settled.log_first_seq - 1} are missing"
    return text
