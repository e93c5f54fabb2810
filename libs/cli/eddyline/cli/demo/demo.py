"""The demo itself: one cluster, two buckets with their sources, a writer, a subscriber, and the view."""

from __future__ import annotations

import asyncio
import shlex
from collections import deque
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from eddyline.cli.access import ACCESS_FLAGS
from eddyline.cli.commands.cluster.up import ALL_STOPPED, own_command, part_event_text, print_roles
from eddyline.cli.demo.changes import Changes
from eddyline.cli.demo.real_data import certificates, suffix_rules
from eddyline.cli.demo.subscriber import DemoSubscriber
from eddyline.cli.demo.verify import verify_buckets
from eddyline.cli.demo.view import DemoView, ViewFigures
from eddyline.cli.errors import EXIT_OK
from eddyline.cli.local_cluster.cluster import LocalClusterPlan, local_cluster
from eddyline.cli.nats.bucket import nats_connection, open_bucket
from eddyline.client.connect import connect
from eddyline.core.errors import EddylineError
from eddyline.core.runtime.clock import sleep, wait_event

if TYPE_CHECKING:
    import argparse
    from collections.abc import AsyncIterator, Mapping

    from eddyline.cli.command import Context
    from eddyline.cli.local_cluster.cluster import LocalCluster
    from eddyline.cli.local_cluster.process import PartEvent
    from eddyline.cli.nats.bucket import Bucket
    from eddyline.client.connect import Client

ONCE_S: Final = 4.0
"""How long the writer runs with --once."""
CAUGHT_UP_S: Final = 60.0
EVENTS_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class Loaded:
    """A bucket with its data in it."""

    bucket: Bucket
    values: Mapping[str, bytes]


async def run_demo(arguments: argparse.Namespace, context: Context) -> int:
    """Bring up, load, show, and with --once verify."""
    output = context.output
    events: deque[str] = deque(maxlen=EVENTS_SHOWN)

    def tell(event: PartEvent) -> None:
        if event.kind == "note":
            output.print_text(part_event_text(event))
        if event.kind == "died" or (event.kind == "ready" and serving.is_set()):
            events.append(part_event_text(event))

    serving = asyncio.Event()
    started_s = context.clock.monotonic_s()
    plan = LocalClusterPlan(arguments.data, free_ports=arguments.free_ports, sources_file=arguments.sources)
    output.print_text(f"starting a cluster in {arguments.data}")
    try:
        async with (
            local_cluster(
                plan,
                environ=context.environ,
                clock=context.clock,
                host=context.host,
                random_source=context.random_source,
                tell=tell,
            ) as cluster,
            _opened(cluster, context) as opened,
        ):
            serving.set()
            print_roles(cluster, output)
            output.print_text(f"look around: {_look_command(arguments)}    Ctrl-C stops it")
            loads = await _load_all(opened, context)
            subscriber = DemoSubscriber(list(loads))
            changes = Changes(
                loads["routes"].bucket,
                loads["routes"].values,
                clock=context.clock,
                random_source=context.random_source,
            )
            await _live(opened, subscriber, changes, events, context, once=arguments.once)
            if not arguments.once:
                return EXIT_OK
            buckets = {name: load.bucket for name, load in loads.items()}
            return await verify_buckets(
                opened.client, buckets, subscriber, change_count=changes.count, started_s=started_s, context=context
            )
    except asyncio.CancelledError:
        if arguments.once or not serving.is_set():
            raise
        # Ctrl-C is how a demo ends.
        output.print_text(ALL_STOPPED)
        return EXIT_OK


def _look_command(arguments: argparse.Namespace) -> str:
    """A command to paste in another terminal, with the access that was given to this one."""
    words = ["ls", "routes", "co.", "--data", str(arguments.data)]
    for name in ACCESS_FLAGS:
        if given := getattr(arguments, name):
            words += [f"--{name.replace('_', '-')}", str(given)]
    return f"{own_command()} {shlex.join(words)}"


@dataclass(frozen=True, slots=True)
class DemoConnections:
    """The connections of the demo."""

    client: Client
    buckets: Mapping[str, Bucket]


@asynccontextmanager
async def _opened(cluster: LocalCluster, context: Context) -> AsyncIterator[DemoConnections]:
    async with (
        connect(
            cluster.address, access=context.access, clock=context.clock, random_source=context.random_source
        ) as client,
        nats_connection(cluster.nats_url) as connection,
    ):
        yield DemoConnections(client, {name: await open_bucket(connection, name) for name in ("certs", "routes")})


async def _load_all(opened: DemoConnections, context: Context) -> dict[str, Loaded]:
    loads: dict[str, Loaded] = {}
    for name, values in (("certs", certificates()), ("routes", suffix_rules())):
        bucket = opened.buckets[name]
        started_s = context.clock.monotonic_s()
        live = await bucket.live_values()
        changed = {key: value for key, value in values.items() if live.get(key) != value}
        await bucket.put_all(changed)
        loads[name] = Loaded(bucket, values)
        await opened.client.sources.create(name, bucket=name)
        took_s = context.clock.monotonic_s() - started_s
        context.output.print_result(
            f"{name}: {len(changed)} of {len(values)} keys put in {took_s:.2f} s, copied by source {name} to topic {name}",
            {"event": "loaded", "bucket": name, "keys": len(values), "put": len(changed), "seconds": round(took_s, 3)},
        )
    return loads


async def _live(
    opened: DemoConnections,
    subscriber: DemoSubscriber,
    changes: Changes,
    events: deque[str],
    context: Context,
    *,
    once: bool,
) -> None:
    """Write, watch and show; for ever, or for a while with `once`. The subscriber has all of it when this ends."""
    stop = asyncio.Event()
    caught_up = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(subscriber.run(opened.client, caught_up))
        await wait_event(context.clock, caught_up, CAUGHT_UP_S)
        writing = group.create_task(changes.run(stop))
        showing = group.create_task(_show(opened.client, subscriber, events, context))
        if not once:
            await showing
        await sleep(context.clock, ONCE_S)
        stop.set()
        await writing
        showing.cancel()
        await _until_level(opened, subscriber, context)
        watching.cancel()


async def _show(client: Client, subscriber: DemoSubscriber, events: deque[str], context: Context) -> None:
    view = DemoView(context.output, subscriber)
    seen = subscriber.change_count
    seen_s = context.clock.monotonic_s()
    while True:
        trouble = ""
        try:
            sources = await client.sources.list()
        except EddylineError as error:
            sources, trouble = (), f"{error.reason}: {error.message}"
        now_s = context.clock.monotonic_s()
        rate = (subscriber.change_count - seen) / max(now_s - seen_s, 0.001)
        seen, seen_s = subscriber.change_count, now_s
        view.show(ViewFigures(context.clock.now_ms(), sources, trouble, rate, tuple(events)))
        await sleep(context.clock, 1.0)


async def _until_level(opened: DemoConnections, subscriber: DemoSubscriber, context: Context) -> None:
    """Wait until the subscriber has what the buckets have, at most for a while; the verification says what is missing."""
    deadline_s = context.clock.monotonic_s() + CAUGHT_UP_S
    while context.clock.monotonic_s() < deadline_s:
        level = True
        for source in await opened.client.sources.list():
            name, topic = source.definition.name, source.definition.topic
            if name in opened.buckets:
                last = await opened.buckets[name].last_revision()
                head = (await opened.client.get_topic(topic)).head_seq
                level &= source.position_revision == last and subscriber.seen_seq.get(topic, 0) >= head
        if level:
            return
        await sleep(context.clock, 0.1)
