"""A process that does nothing but write a catalog, made to be killed: `python -m tests.support.storage.catalog_writer PATH`.

Each step is one write: all topics with the step's number as their head, one of them with large parts, and one that comes and
goes. After a step its number goes to standard output, a line each: that step is acknowledged.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from eddyline.store.catalog.rocksdb import RocksCatalog
from tests.support.storage import catalog_entries as entries

if TYPE_CHECKING:
    from eddyline.store.catalog.catalog import Catalog, TopicEntry

TOPICS = 50
LARGE = 7
FLEETING = TOPICS + 1
KEYS = 1500


def topics_at(step: int) -> list[TopicEntry]:
    """The expected content after a step."""
    topics = [entries.plain_topic(topic_id, head_seq=step) for topic_id in range(1, TOPICS + 1)]
    keys = tuple(map(entries.key, range(step * 10, step * 10 + KEYS)))
    topics[LARGE - 1] = replace(topics[LARGE - 1], keys=keys, deleted=bytes((step % 256,)) * 5000)
    if step % 2:
        topics.append(entries.plain_topic(FLEETING, head_seq=step))
    return topics


def run(catalog: Catalog) -> None:
    """Go on from where the catalog is, without end."""
    head, topics = catalog.load()
    list(topics)
    step = head.checkpoint if head else 0
    while True:
        step += 1
        catalog.write(entries.head(step), topics_at(step), [] if step % 2 else [FLEETING])
        os.write(1, b"%d\n" % step)


if __name__ == "__main__":
    run(RocksCatalog(Path(sys.argv[1])))
