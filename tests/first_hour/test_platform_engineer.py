"""The first hour of a platform engineer: a KV bucket with configuration, copied, compared, lost, and seen to be lost."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.support.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration

BUCKET = """
import asyncio, json, sys, nats

async def main(verb):
    address = json.load(open("eddyline-data/cluster.json"))["nats"]["address"]
    client = await nats.connect(f"nats://{address}")
    js = client.jetstream()
    if verb == "make":
        bucket = await js.create_key_value(bucket="routes", history=5)
        for number in range(100):
            await bucket.put(f"route.{number}", b"v%d" % number)
    else:
        await js.delete_key_value("routes")
    await client.close()

asyncio.run(main(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    """A terminal beside a cluster that runs in the same folder."""
    terminal = Terminal(tmp_path_factory.mktemp("platform"))
    with terminal.runs("eddyline up --free-ports", until="eddyline status"):
        terminal.writes("bucket.py", BUCKET)
        terminal.types("python bucket.py make")
        yield terminal


def test_bucket_is_copied_compared_and_judged(shell: Terminal) -> None:
    # history 5 of 64: what the bucket may lose is said at once
    shell.types("eddyline source create routes --bucket routes", "miss revisions", "64")
    shell.types("eddyline kv put routes route.7 new --wait-applied")
    shell.types("eddyline kv get routes route.7", "new")
    assert shell.types("eddyline get routes route.7 --raw") == "new"
    shell.types("eddyline source list", "routes", "LIVE")
    shell.types("eddyline source get routes", "LIVE", "miss revisions")
    shell.types("eddyline verify routes", "100")
    shell.types("eddyline history routes route.7", "v7", "new")
    shell.types("eddyline status", "routes", "LIVE")
    (source,) = [
        json.loads(line) for line in shell.types("eddyline source list -o json").splitlines() if "routes" in line
    ]
    assert source["state"] == "LIVE"


def test_bucket_that_goes_away_turns_status_to_1_and_keeps_what_was_copied(shell: Terminal) -> None:
    shell.types("python bucket.py delete")
    # until ingest has noticed
    shell.types("for i in $(seq 600); do eddyline status > last || exit 0; sleep 0.2; done; cat last; exit 1")
    shell.types("eddyline status", "routes", code=1)
    assert shell.types("eddyline get routes route.7 --raw") == "new"
    assert shell.types("eddyline ls routes | wc -l").strip() == "100"
