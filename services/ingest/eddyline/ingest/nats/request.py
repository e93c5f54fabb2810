"""One request to NATS, ended as soon as no answer can come: nats-py waits its whole timeout if NATS does not permit the
request.

Threading: event loop.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nats.errors import Error as NatsError

from eddyline.ingest.nats.cancellation import preserve_cancellation

if TYPE_CHECKING:
    from nats.aio.client import Client

    from eddyline.ingest.nats.connection import Publishing


async def request(
    client: Client, publishing: Publishing, value: bytes, *, timeout_s: float, headers: dict[str, str] | None = None
) -> bytes | None:
    """Return the answer's bytes; None = none will come: see `publishing`.

    Raises:
        NatsError, OSError, TimeoutError.
    """

    async def send() -> bytes | NatsError | OSError | TimeoutError:
        try:
            with preserve_cancellation():
                subject = publishing.subject
                return (await client.request(subject, value, timeout=timeout_s, headers=headers)).data
        except (NatsError, OSError, TimeoutError) as error:
            return error

    async with asyncio.TaskGroup() as group:
        asking = group.create_task(send())
        ended = group.create_task(publishing.ended.wait())
        await asyncio.wait((asking, ended), return_when=asyncio.FIRST_COMPLETED)
        answered = asking.done()
        asking.cancel()
        ended.cancel()
    if not answered or asking.cancelled():
        return None
    answer = asking.result()
    if isinstance(answer, bytes):
        return answer
    raise answer
