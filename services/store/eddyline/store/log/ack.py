"""An append's acknowledgement: a future that whoever goes away does not take back.

In place of `asyncio.shield` around a plain one, which is a future and two turns of the loop more for each append
(`tests/bench/README.md`, P1).
Threading: event loop.
"""

from __future__ import annotations

import asyncio

from eddyline.core.store_link.protocol import AppendResult


class Ack(asyncio.Future[AppendResult]):
    """Resolves when the append is committed or refused, and not before: a task that is cancelled while it awaits this one
    ends then, by the append's outcome made known or by the store's end."""

    def cancel(self, msg: object = None) -> bool:
        """Always False: an append that has its place keeps it."""
        return False


def new_ack() -> Ack:
    """One of the running loop."""
    return Ack(loop=asyncio.get_running_loop())


def acknowledged(result: AppendResult) -> Ack:
    """That of an append whose outcome is known."""
    ack = new_ack()
    ack.set_result(result)
    return ack
