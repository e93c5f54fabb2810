"""Blocking appends with many in flight: streams and runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from eddyline.client import Kind, NumberedRecord, Record, errors
from eddyline.client.sync import connect
from tests.support.clients.served_thread import store_in_thread

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from eddyline.client.sync import Client

COUNT = 300


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with store_in_thread(tmp_path) as address, connect(address) as client:
        yield client


def numbered(count: int) -> Iterator[NumberedRecord]:
    for number in range(1, count + 1):
        yield NumberedRecord(number, Record(data=b"%d" % number))


def stored(client: Client, topic: str) -> list[bytes | None]:
    return [item.data for item in client.read(topic) if isinstance(item, Record)]


def test_a_stream_waits_for_every_outcome(client: Client) -> None:
    with client.append_stream("log", create=Kind.LOG) as stream:
        sent = [stream.append([Record(data=b"%d" % number)]) for number in range(COUNT)]
        assert sent[0].wait().first_seq == 1
        stream.flush()
        assert all(one.done and one.error is None for one in sent)
    assert (stream.acknowledged, stream.first_seq, stream.last_seq) == (COUNT, 1, COUNT)
    assert stored(client, "log") == [b"%d" % number for number in range(COUNT)]


def test_a_stream_raises_its_failure_and_the_client_goes_on(client: Client) -> None:
    # TopicNotFound, or NotReady where gRPC refuses to write to the call that has ended before it reads why.
    with pytest.raises((errors.TopicNotFound, errors.NotReady)), client.append_stream("nowhere") as stream:
        stream.append([Record(data=b"1")]).wait()
    with pytest.raises(ZeroDivisionError), client.append_stream("log", create=Kind.LOG) as stream:
        raise ZeroDivisionError
    client.append("log", [Record(data=b"1")], create=Kind.LOG)


def test_a_run_stores_each_record_once(client: Client) -> None:
    run = client.append_run("log", run_id="r", create=Kind.LOG)
    run.run(numbered(COUNT))
    assert (run.acknowledged, run.acknowledged_number, run.unknown_count, run.next_number) == (COUNT, COUNT, 0, 0)
    client.append_run("log", run_id="r").run(numbered(COUNT))
    assert stored(client, "log") == [b"%d" % number for number in range(1, COUNT + 1)]


def test_a_run_that_is_refused_stops_reading_its_records(client: Client) -> None:
    records = numbered(1_000_000)
    with pytest.raises(errors.TopicNotFound):
        client.append_run("nowhere", run_id="r").run(records)
    assert next(records).number < 2_000


def test_an_error_of_the_records_comes_after_the_records_before_it(client: Client) -> None:
    def failing() -> Iterator[NumberedRecord]:
        yield from numbered(COUNT)
        raise ZeroDivisionError

    run = client.append_run("log", run_id="r", create=Kind.LOG)
    with pytest.raises(ZeroDivisionError):
        run.run(failing())
    assert run.acknowledged == COUNT == len(stored(client, "log"))


def test_an_interrupt_in_the_records_ends_the_run(client: Client) -> None:
    def interrupted() -> Iterator[NumberedRecord]:
        yield from numbered(COUNT)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        client.append_run("log", run_id="r", create=Kind.LOG).run(interrupted())
    client.append_run("log", run_id="r", create=Kind.LOG).run(numbered(COUNT))
    assert len(stored(client, "log")) == COUNT
