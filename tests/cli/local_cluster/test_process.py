"""A supervised process: readiness, restarts, kills, stops; with small programs as parts."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from typing import TYPE_CHECKING

import pytest

from eddyline.cli.errors import CommandError
from eddyline.cli.local_cluster.cluster import nats_spec
from eddyline.cli.local_cluster.ports import choose_ports
from eddyline.cli.local_cluster.process import FIRST_DEATHS_MAX, PartEvent, ProcessSpec
from eddyline.cli.local_cluster.readiness import DISK_FLOOR, nats_is_ready, nats_name, recovered_bytes, role_is_ready
from eddyline.cli.local_cluster.supervisor import supervised
from eddyline.core.runtime.clock import SystemClock
from eddyline.core.server.server import make_server
from eddyline.v1 import cluster_pb2, cluster_pb2_grpc
from tests.support.hang import HANG_S
from tests.support.manual_clock import ManualClock, pass_time_until

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from eddyline.cli.local_cluster.supervisor import Supervisor
    from eddyline.core.runtime.clock import Clock

STAYS = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("here", flush=True)
signal.pause()
"""
DIES = "import sys; sys.exit('cannot go on')"


class Process7(cluster_pb2_grpc.ClusterServiceServicer):
    """A role that runs as process 7."""

    reason = ""
    store = cluster_pb2.StoreStatus()

    async def GetTopology(
        self, request: cluster_pb2.GetTopologyRequest, context: object
    ) -> cluster_pb2.GetTopologyResponse:
        return cluster_pb2.GetTopologyResponse()

    async def GetStatus(self, request: cluster_pb2.GetStatusRequest, context: object) -> cluster_pb2.GetStatusResponse:
        return cluster_pb2.GetStatusResponse(pid=7, ready=not self.reason, reason=self.reason, store=self.store)


class NoJitter(random.Random):
    def uniform(self, a: float, b: float) -> float:
        return a


class Told:
    """The events that the supervisor reported."""

    def __init__(self) -> None:
        self.events: list[PartEvent] = []
        self.changed = asyncio.Event()

    def __call__(self, event: PartEvent) -> None:
        self.events.append(event)
        self.changed.set()

    def kinds(self, name: str) -> list[str]:
        return [event.kind for event in self.events if event.name == name]

    async def until(self, name: str, kind: str, times: int = 1) -> None:
        while self.kinds(name).count(kind) < times:
            self.changed.clear()
            await self.changed.wait()


def program(name: str, code: str, **variables: str) -> ProcessSpec:
    async def ready(_pid: int) -> bool:
        return True

    return ProcessSpec(name, (sys.executable, "-c", code), "nowhere", ready, variables)


def running(
    data: Path, told: Told, *stages: list[ProcessSpec], clock: Clock | None = None
) -> AbstractAsyncContextManager[Supervisor]:
    (data / "logs").mkdir(exist_ok=True)
    return supervised(stages, data=data, clock=clock or SystemClock(), random_source=NoJitter(1), tell=told)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_part_that_dies_is_started_again(tmp_path: Path) -> None:
    told = Told()
    async with running(tmp_path, told, [program("a", STAYS)]) as supervisor:
        first = supervisor.parts["a"].pid
        await supervisor.parts["a"].kill()
        await told.until("a", "ready", 2)
        assert supervisor.parts["a"].pid not in (0, first)
    assert told.kinds("a") == ["started", "ready", "died", "started", "ready", "stopped"]
    assert told.events[2].detail == "killed by SIGKILL"


async def test_held_part_stays_down_until_released(tmp_path: Path) -> None:
    told = Told()
    async with running(tmp_path, told, [program("a", STAYS), program("b", STAYS)]) as supervisor:
        part = supervisor.parts["a"]
        await part.kill(hold=True)
        await supervisor.parts["b"].kill()
        await told.until("b", "ready", 2)
        assert part.pid == 0
        part.release()
        await part.wait_ready(30.0)
        assert part.start_count == 2


async def test_leaving_takes_all_down_against_the_flow(tmp_path: Path) -> None:
    told = Told()
    names = ("nats", "store", "ingest", "delivery")
    async with running(tmp_path, told, [program(name, STAYS) for name in names]) as supervisor:
        pids = [part.pid for part in supervisor.parts.values()]
    assert [event.name for event in told.events if event.kind == "stopped"] == ["ingest", "delivery", "store", "nats"]
    assert not any(is_alive(pid) for pid in pids)


@pytest.mark.parametrize("kind", ["started", "ready", "died", "stopped"])
async def test_failed_report_stops_all_processes(tmp_path: Path, kind: str) -> None:
    class Full(Told):
        def __call__(self, event: PartEvent) -> None:
            super().__call__(event)
            if event.kind == kind:
                raise CommandError("standard output cannot be written")

    told = Full()
    async with asyncio.timeout(HANG_S) as bound:
        with pytest.RaisesGroup(CommandError, flatten_subgroups=True, allow_unwrapped=True):
            async with running(tmp_path, told, [program("a", STAYS)]) as supervisor:
                if kind == "died":
                    await supervisor.parts["a"].kill()
                if kind != "stopped":
                    await asyncio.Event().wait()
    assert not bound.expired()
    pids = {event.pid for event in told.events} - {0}
    assert pids
    assert not any(is_alive(pid) for pid in pids)


async def test_error_of_the_body_comes_out_as_it_is_and_all_is_down(tmp_path: Path) -> None:
    told = Told()
    with pytest.raises(CommandError, match="enough"):
        async with running(tmp_path, told, [program("a", STAYS)]):
            raise CommandError("enough")
    assert told.kinds("a")[-1] == "stopped"


async def test_part_that_cannot_start_is_given_up_with_its_last_words(tmp_path: Path) -> None:
    async def never(_pid: int) -> bool:
        return False

    told = Told()
    spec = ProcessSpec("a", (sys.executable, "-c", DIES), "nowhere", never)
    with pytest.raises(CommandError, match="fails at each start: cannot go on"):
        async with running(tmp_path, told, [spec]):
            pass
    assert told.kinds("a").count("died") >= FIRST_DEATHS_MAX
    assert "cannot go on" in told.events[1].detail


async def test_next_stage_waits_for_the_one_before(tmp_path: Path) -> None:
    told = Told()
    async with running(tmp_path, told, [program("a", STAYS)], [program("b", STAYS)]):
        pass
    order = [(event.name, event.kind) for event in told.events]
    assert order.index(("a", "ready")) < order.index(("b", "started"))


async def test_part_gets_its_variables_and_its_log(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "a.log"

    async def has_spoken(_pid: int) -> bool:
        return b"here" in log.read_bytes()

    code = "import os; print(os.environ['EDDYLINE_X'], flush=True)\n" + STAYS
    spec = ProcessSpec("a", (sys.executable, "-c", code), "nowhere", has_spoken, {"EDDYLINE_X": "seen"})
    async with running(tmp_path, Told(), [spec]):
        assert log.read_bytes() == b"seen\nhere\n"


async def test_real_nats_server_is_ready_when_it_greets_and_keeps_its_port(tmp_path: Path) -> None:
    told = Told()
    address = f"127.0.0.1:{choose_ports({}, free_ports=True)['nats']}"
    name = nats_name(tmp_path)
    assert not await nats_is_ready(address, name)
    async with running(tmp_path, told, [nats_spec(tmp_path, address)]) as supervisor:
        assert await nats_is_ready(address, name)
        await supervisor.parts["nats"].kill()
        await told.until("nats", "ready", 2)
        assert await nats_is_ready(address, name)
    assert not await nats_is_ready(address, name)


async def test_foreign_nats_server_at_the_port_is_not_taken_for_the_part(tmp_path: Path) -> None:
    address = f"127.0.0.1:{choose_ports({}, free_ports=True)['nats']}"
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.mkdir()
    theirs.mkdir()
    told = Told()
    async with running(theirs, Told(), [nats_spec(theirs, address)]):
        assert not await nats_is_ready(address, nats_name(ours))
        with pytest.raises(CommandError, match=r"fails at each start: .*address already in use"):
            async with running(ours, told, [nats_spec(ours, address)]):
                pass
    assert "ready" not in told.kinds("nats")


async def test_role_is_ready_only_as_the_process_that_was_started() -> None:
    server = make_server("127.0.0.1:0")
    cluster_pb2_grpc.add_ClusterServiceServicer_to_server(Process7(), server.grpc)
    address = await server.start()
    assert not await role_is_ready("store", address, 7)
    await server.health.set_ready(True)
    assert await role_is_ready("store", address, 7)
    assert not await role_is_ready("store", address, 8)
    await server.stop(0)


async def test_full_store_is_ready_and_a_recovering_one_prints_progress() -> None:
    server, role = make_server("127.0.0.1:0"), Process7()
    cluster_pb2_grpc.add_ClusterServiceServicer_to_server(role, server.grpc)
    address = await server.start()
    role.reason = "NOT_READY"
    role.store.recovery.replayed_bytes = 9
    assert not await role_is_ready("store", address, 7)
    assert [await recovered_bytes(address, pid) for pid in (7, 8)] == [9, 0]
    role.reason = DISK_FLOOR
    assert await role_is_ready("store", address, 7)
    await server.stop(0)
    assert await recovered_bytes(address, 7) == 0


async def test_start_that_gets_on_is_waited_for_and_one_that_does_not_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eddyline.cli.local_cluster.process.PROGRESS_S", 0.05)
    monkeypatch.setattr("eddyline.cli.local_cluster.supervisor.READY_S", 2.0)
    done = 0

    async def progress(_pid: int) -> int:
        nonlocal done
        done = min(done + 1024, 9 * 1024)
        return done

    async def never(_pid: int) -> bool:
        return False

    clock, told = ManualClock(), Told()
    spec = ProcessSpec("a", (sys.executable, "-c", STAYS), "nowhere", never, {}, progress)

    async def start() -> None:
        async with running(tmp_path, told, [spec], clock=clock):
            raise AssertionError("it is never ready")

    given_up = pytest.RaisesExc(CommandError, match="is not ready and made no progress for 2 s")
    with pytest.RaisesGroup(given_up):
        async with asyncio.TaskGroup() as group:
            starting = group.create_task(start())
            await told.until("a", "started")
            await pass_time_until(starting, clock, 0.05)
    notes = [event.detail for event in told.events if event.kind == "note"]
    assert (len(notes), notes[-1]) == (9, "recovering, 9KiB done")


async def test_stop_is_reported_for_a_part_that_is_down(tmp_path: Path) -> None:
    told = Told()
    async with running(tmp_path, told, [program("a", STAYS)]) as supervisor:
        await supervisor.parts["a"].kill(hold=True)
    assert told.kinds("a") == ["started", "ready", "died", "stopped"]
