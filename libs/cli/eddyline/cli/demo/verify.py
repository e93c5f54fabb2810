"""The proof at the end of `--once`: position = last revision, fold = bucket key by key, subscriber = fold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from eddyline.cli.commands.sources.source import comparison_text
from eddyline.cli.errors import EXIT_FAILED, EXIT_OK
from eddyline.core.runtime.clock import sleep

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eddyline.cli.command import Context
    from eddyline.cli.demo.subscriber import DemoSubscriber
    from eddyline.cli.nats.bucket import Bucket
    from eddyline.client.connect import Client

LEVEL_S: Final = 60.0


async def verify_buckets(
    client: Client,
    buckets: Mapping[str, Bucket],
    subscriber: DemoSubscriber,
    *,
    change_count: int,
    started_s: float,
    context: Context,
) -> int:
    """Verify every bucket; one summary line. Exit code 1 on any difference."""
    failures: list[str] = []
    key_count = 0
    revisions = 0
    for name, bucket in buckets.items():
        last = await bucket.last_revision()
        position = await _position_at(client, name, last, context)
        if position != last:
            failures.append(f"{name}: position {position} is not the last revision {last}")
        compared = await client.sources.compare(name)
        if not compared.equal:
            failures.append(comparison_text(name, compared))
        wrong = await _differing_keys(client, name, subscriber)
        if wrong:
            failures.append(f"{name}: {wrong} keys at the subscriber differ from the fold")
        key_count += compared.fold_count
        revisions += last
    for failure in failures:
        context.output.print_result(f"DIFFERENCE  {failure}", {"event": "difference", "text": failure})
    seconds = context.clock.monotonic_s() - started_s
    verdict = "NOT EQUAL" if failures else "fold = bucket = subscriber, key by key"
    context.output.print_result(
        f"{verdict}: {len(buckets)} buckets, {key_count} keys, {revisions} revisions, position = last_seq, "
        f"{change_count} changes while watching, {subscriber.change_count} seen, in {seconds:.1f} s",
        {
            "event": "summary",
            "equal": not failures,
            "buckets": len(buckets),
            "keys": key_count,
            "revisions": revisions,
            "changes": change_count,
            "changes_seen": subscriber.change_count,
            "seconds": round(seconds, 1),
        },
    )
    return EXIT_FAILED if failures else EXIT_OK


async def _position_at(client: Client, name: str, revision: int, context: Context) -> int:
    """Wait until the source's position is `revision`, at most for a while; where it is."""
    deadline_s = context.clock.monotonic_s() + LEVEL_S
    while True:
        position = (await client.sources.get(name)).position_revision
        if position == revision or context.clock.monotonic_s() >= deadline_s:
            return position
        await sleep(context.clock, 0.1)


async def _differing_keys(client: Client, name: str, subscriber: DemoSubscriber) -> int:
    surplus = dict(subscriber.live[name])
    wrong = 0
    async for entry in client.range(name):
        assert entry.key is not None
        seen = surplus.pop(entry.key, None)
        if seen is None or (seen.seq, seen.data) != (entry.seq, entry.data):
            wrong += 1
    return wrong + len(surplus)
