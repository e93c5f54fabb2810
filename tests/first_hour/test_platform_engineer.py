"""The first hour of a platform engineer: a KV bucket with configuration, copied, compared, lost, and seen to be lost."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.terminal import Terminal

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


def test_bucket_is_copied_compared_and_checked(shell: Terminal) -> None:
    shell.writes("bucket.py", BUCKET)
    shell.types("python bucket.py make")
    # history 5 of 64: what the bucket may lose is said at once
    shell.types("eddyline source create routes --bucket routes", "miss revisions", "64")
    shell.types("eddyline kv put routes route.7 new --wait-applied")
    shell.types("eddyline kv get routes route.7", "new")
    assert shell.types("eddyline get routes route.7 --raw") == "new"
    shell.types("eddyline source get routes", "LIVE", "miss revisions")
    shell.types("eddyline verify routes", "100")
    shell.types("eddyline history routes route.7", "v7", "new")
    shell.types("eddyline status", "routes", "LIVE")
    (source,) = shell.types("eddyline source list -o json").splitlines()
    assert json.loads(source)["state"] == "LIVE"


def test_bucket_that_goes_away_turns_status_to_1_and_keeps_what_was_copied(shell: Terminal) -> None:
    shell.types("python bucket.py delete")
    shell.types("until eddyline source get routes | grep -q SOURCE_LOST; do sleep 0.2; done")
    page = shell.types("eddyline status", code=1)
    assert page.splitlines()[1] == "  ! source routes is SOURCE_LOST: NATS has no bucket routes"
    shell.types("eddyline kv get routes nothing", "SOURCE_LOST", "KEY_NOT_FOUND", code=1)
    assert shell.types("eddyline get routes route.7 --raw") == "new"
    assert shell.types("eddyline ls routes | wc -l").strip() == "100"
    shell.types("eddyline source delete routes --yes")
    shell.types("eddyline status", "all is well")
