"""The blocking client in processes of its own: Ctrl-C, fork, exit."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from eddyline.client import Kind, Record
from eddyline.client.sync import connect
from tests.support.clients.served_thread import served_in_thread, store_in_thread
from tests.support.hang import HANG_S
from tests.support.store.served import Gate, served_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def program(text: str, address: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program with `connect` and `address`; kill it at the end."""
    text = (
        "import os, sys\nfrom eddyline.client import Kind, Record\nfrom eddyline.client.sync import connect\n"
        f"address = {address!r}\n"
        "def say(*words): print(*words, flush=True)\n" + textwrap.dedent(text)
    )
    with subprocess.Popen(
        [sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def said(process: subprocess.Popen[str]) -> list[str]:
    """Wait for the end; return the lines of standard output."""
    out, err = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, err
    return out.splitlines()


def test_ctrl_c_ends_a_read_that_waits_and_the_client_stays_usable(tmp_path: Path) -> None:
    with store_in_thread(tmp_path) as address:
        with connect(address) as client:
            client.append("log", [Record(data=b"1")], create=Kind.LOG)
        reader = """
            with connect(address) as client:
                items = client.read("log", follow=True)
                try:
                    say(next(items).seq)
                    next(items)
                except KeyboardInterrupt:
                    say("interrupted")
                client.append("log", [Record(data=b"2")])
                say(next(items).seq)
        """
        with program(reader, address) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "1\n"
            process.send_signal(signal.SIGINT)
            assert said(process) == ["interrupted", "2"]


def test_ctrl_c_cancels_a_call_that_hangs_and_the_client_stays_usable(tmp_path: Path) -> None:
    disk = Gate()
    with served_in_thread(served_store(tmp_path, disk=disk)) as store:
        with connect(store.address) as client:
            client.create_topic("kv", Kind.KV)
        writer = """
            with connect(address) as client:
                try:
                    say("writes")
                    client.put("kv", b"a", b"1")
                except KeyboardInterrupt:
                    say("interrupted")
                say(client.get_topic("kv").name)
        """
        disk.close()
        with program(writer, store.address) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "writes\n"
            process.send_signal(signal.SIGINT)
            assert said(process) == ["interrupted", "kv"]
        disk.open()


def test_ctrl_c_ends_a_program_that_does_not_catch_it(tmp_path: Path) -> None:
    with store_in_thread(tmp_path) as address:
        with connect(address) as client:
            client.create_topic("log", Kind.LOG)
        reader = """
            with connect(address) as client:
                say("reads")
                for _ in client.read("log", follow=True):
                    pass
        """
        with program(reader, address) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "reads\n"
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=HANG_S)
        assert err.splitlines()[-1] == "KeyboardInterrupt"


FORKED = """
    client = connect(address)
    client.create_topic("kv", Kind.KV)
    items, watch = client.list_topics(), client.watch("kv")
    calls = [lambda: client.get("kv", b"a"), lambda: client.read("kv"), lambda: client.kv.put("b", b"k", b"v"),
             lambda: client.sources.list(), lambda: client.topology, lambda: next(items), lambda: next(watch),
             lambda: connect(address)]
    child = os.fork()
    if child == 0:
        for call in calls:
            try:
                call()
            except RuntimeError as error:
                say("connect()" in str(error) and "after the fork" in str(error))
        items.close(); watch.close(); client.close()
        sys.exit(0)
    say(os.waitpid(child, 0)[1], client.get_topic("kv").name)
    client.close()
"""


def test_after_a_fork_every_call_names_connect_and_the_parent_goes_on(tmp_path: Path) -> None:
    with store_in_thread(tmp_path) as address, program(FORKED, address) as process:
        assert said(process) == ["True"] * 8 + ["0 kv"]


@pytest.mark.parametrize("before", ["", "connect(address).close()"])
def test_a_child_connects_where_no_client_was_open_at_the_fork(tmp_path: Path, before: str) -> None:
    text = f"""
        {before}
        child = os.fork()
        with connect(address) as client:
            say([topic.name for topic in client.list_topics()])
        if child:
            say(os.waitpid(child, 0)[1])
    """
    with store_in_thread(tmp_path) as address, program(text, address) as process:
        assert said(process) == ["[]", "[]", "0"]


@pytest.mark.parametrize("end", ["", "sys.exit(0)", "del client", "import gc; gc.collect()"])
def test_a_program_that_does_not_close_its_client_ends(tmp_path: Path, end: str) -> None:
    text = f"""
        client = connect(address)
        items = client.read("none", follow=True)
        say("open")
        {end}
    """
    with store_in_thread(tmp_path) as address, program(text, address) as process:
        out, err = process.communicate(timeout=HANG_S)
        assert (process.returncode, out, err) == (0, "open\n", "")
