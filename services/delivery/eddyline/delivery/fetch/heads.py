"""Heads: the present state of topics, with one request to the store for all concurrent callers.

Each caller gets the answer to a request that began after its call, so that no record acknowledged previous it is missing.
While one request is in flight, all new callers wait for the next one: a thousand streams that reconnect at the same
moment cost two requests.
Failure: the error of a request is raised to all of its callers; if the caller that sends it is cancelled, another one
repeats it.
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
    """Shared GetTopic requests of one process. Answers are not kept."""

    def __init__(self, link: StoreLink) -> None:
        self._link = link
        self._in_flight: dict[str, _HeadRequest] = {}
        self._next: dict[str, _HeadRequest] = {}

    async def request(self, topic: str) -> TopicInfo | TopicNotFound:
        """Return the topic's state, no older than the call.

        Raises:
            The errors of the store's answer, but TopicNotFound.
        """
        while True:
            request = self._next.get(topic)
            if request is None:
                request = await self._send(topic)
            else:
                await request.done.wait()
            if request.failure is not None:
                raise request.failure
            if request.info is not None:
                return request.info

    async def _send(self, topic: str) -> _HeadRequest:
        request = self._next[topic] = _HeadRequest()
        try:
            previous = self._in_flight.get(topic)
            if previous is not None:
                await previous.done.wait()
            del self._next[topic]
            self._in_flight[topic] = request
            request.info = await self._link.get_topic(topic)
        except TopicNotFound as missing:
            request.info = missing
        except EddylineError as error:
            request.failure = error
        finally:
            for requests in (self._next, self._in_flight):
                if requests.get(topic) is request:
                    del requests[topic]
            request.done.set()
        return request


class _HeadRequest:
    """One request. Done without `info` and `failure` = its sender was cancelled."""

    __slots__ = ("done", "failure", "info")

    def __init__(self) -> None:
        self.done = asyncio.Event()
        self.info: TopicInfo | TopicNotFound | None = None
        self.failure: EddylineError | None = None
