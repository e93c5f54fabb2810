"""The first hour of a subscriber: topics followed by command and in Python, from places of its own, appends as a whole."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.terminal import Terminal

pytestmark = pytest.mark.integration

FOLLOW = """
import asyncio
import sys
from eddyline.client import Op, Record, connect

async def main():
    async with connect(sys.argv[1]) as client:
        records = client.read("trades", follow=True)
        for _ in range(3):
            print("had", (await anext(records)).seq)
        try:
            await asyncio.wait_for(anext(records), 0.5)
        except TimeoutError:
            print("nothing new")
        await client.append("trades", [Record(op=Op.APPEND, data=b"4")])
        async for record in records:
            print("got", record.seq, record.data)
            break

asyncio.run(main())
"""

WHOLE = """
import asyncio
import sys
from eddyline.client import Kind, Op, Record, Records, connect

async def main():
    async with connect(sys.argv[1]) as client:
        rows = [Record(op=Op.APPEND, data=bytes(8192)) for _ in range(40)]
        for _ in range(2):
            await client.append("transfers", rows, create=Kind.LOG)
        held, frames, whole = 0, 0, []
        async with client.watch("transfers", start="earliest") as events:
            async for event in events:
                if isinstance(event, Records):
                    held, frames = held + len(event.records), frames + 1
                    if event.batch_end:
                        whole.append(held)
                        held = 0
                if sum(whole) == 80:
                    break
        print(frames > len(whole), all(size % 40 == 0 for size in whole), held)

asyncio.run(main())
"""


def address_of(shell: Terminal) -> str:
    """The store's address, as the cluster in the folder has it."""
    return str(json.loads(shell.types("cat eddyline-data/cluster.json"))["store"]["address"])


def test_follower_whose_wait_timed_out_has_the_next_record(shell: Terminal) -> None:
    shell.types("seq 1 3 | eddyline append trades --create log")
    shell.writes("follow.py", FOLLOW)
    shown = shell.types(f"python follow.py {address_of(shell)}", "nothing new")
    assert shown.splitlines()[-1] == "got 4 b'4'"


def test_appends_are_applied_as_a_whole(shell: Terminal) -> None:
    shell.writes("whole.py", WHOLE)
    assert shell.types(f"python whole.py {address_of(shell)}").strip() == "True True 0"
    line = shell.types("eddyline watch transfers --start earliest -o json | head -n 80").splitlines()[-1]
    assert json.loads(line)["batch_end"] is True


def test_place_in_a_topic_that_was_made_again_loses_nothing(shell: Terminal) -> None:
    shell.types("seq 1 3 | eddyline append prices --create log")
    epoch = json.loads(shell.types("eddyline topic get prices -o json"))["epoch"]
    shell.types("eddyline topic delete prices")
    shell.types("seq 11 13 | eddyline append prices --create log")
    place = f"--after 2 --epoch {epoch}"
    for line in (f"eddyline read prices {place} -o json", f"eddyline watch prices {place} -o json | head -n 4"):
        gap, *records = [json.loads(one) for one in shell.types(line).splitlines()]
        assert (gap["gap"], gap["old_epoch"]) == ("RECREATED", epoch)
        assert [record["data"] for record in records] == ["11", "12", "13"]
    shell.types(f"eddyline read prices {place}", "RECREATED", f"{epoch}")
    shell.types(f"eddyline watch prices --epoch {epoch}", "--after", code=2)
