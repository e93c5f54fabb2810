"""Heads: what a topic is now, asked of the store once for all who ask at the same time.

Each caller gets the answer to a question that began after its call, so that nothing acknowledged before it is missing. While
one question is out, all who come wait for the next: a thousand streams that come back at one moment cost two.
Failure: what a question fails by is raised to all of its callers; one whose asker went away is asked again by another.
Threading: event loop only.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from eddyline.core.errors import EddylineError, TopicNotFound

if TYPE_CHECKING:
    from eddyline.core.model.topic import TopicInfo
    from eddyline.core.store_link.protocol import StoreLink


class HeadCache:
    """Questions of one process."""

    def __init__(self, link: StoreLink) -> None:
        self._link = link
        self._out: dict[str, _Question] = {}
        self._next: dict[str, _Question] = {}

    async def ask(self, topic: str) -> TopicInfo | TopicNotFound:
        """What the topic is, no earlier than now.

        Raises:
            What the store's answer raises, but TopicNotFound.
        """
        while True:
            question = self._next.get(topic)
            if question is None:
                question = await self._put(topic)
            else:
                await question.over.wait()
            if question.failure is not None:
                raise question.failure
            if question.found is not None:
                return question.found

    async def _put(self, topic: str) -> _Question:
        question = self._next[topic] = _Question()
        try:
            before = self._out.get(topic)
            if before is not None:
                await before.over.wait()
            del self._next[topic]
            self._out[topic] = question
            question.found = await self._link.get_topic(topic)
        except TopicNotFound as missing:
            question.found = missing
        except EddylineError as error:
            question.failure = error
        finally:
            for where in (self._next, self._out):
                if where.get(topic) is question:
                    del where[topic]
            question.over.set()
        return question


class _Question:
    """One question. Over without `found` and `failure` = whoever asked went away."""

    __slots__ = ("failure", "found", "over")

    def __init__(self) -> None:
        self.over = asyncio.Event()
        self.found: TopicInfo | TopicNotFound | None = None
        self.failure: EddylineError | None = None
