"""Parser of a NATS server's bytes: messages of raw subscriptions here, everything else by nats-py's parser.

    control line   MSG <subject> <sid> [<reply> ]<size> CRLF                   then size bytes, CRLF
                   HMSG <subject> <sid> [<reply> ]<header size> <size> CRLF    then size bytes, the header block first, CRLF
                   anything else, one line: PING, PONG, INFO, +OK, -ERR

nats-py (`nats.protocol.parser`) spends a regular expression of six groups, a dict and two moves of the buffer on each
message, 33 % of ingest's time at a bucket's first copy. This parser finds a line and splits it. nats-py's parser gets one
whole operation at a time, so that it never stops within one.
Source: the NATS client protocol. Cost: it replaces `Client._ps`.
Threading: event loop, within the client's reading task.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from nats.errors import ProtocolError
from nats.protocol.parser import Parser

if TYPE_CHECKING:
    from collections.abc import Callable

    Receive = Callable[[bytes, bytes, bytes, bytes], None]
    """Subject, reply, data, header block; empty = none."""

LINE_BYTES_MAX: Final = 1 << 20
"""A server's longest line, an INFO that names all of its cluster, is a few KiB."""

_END: Final = b"\r\n"
_MESSAGES: Final = (b"MSG ", b"HMSG ")
_NO_WORDS: Final[list[bytes]] = []


class RawParser(Parser):
    """See the module. `receivers` by the subscription's number; the client's owner keeps them."""

    def __init__(self, client: Any, receivers: dict[int, Receive]) -> None:
        super().__init__(client)
        self._receivers = receivers

    def reset(self) -> None:
        """Forget a partial operation: another connection begins."""
        super().reset()
        self._rest = bytearray()
        self._needed = 0

    async def parse(self, data: bytes = b"") -> None:
        """Append `data`; each whole operation is handled before this returns.

        Raises:
            ProtocolError: no NATS server sends such bytes.
        """
        rest = self._rest
        rest += data
        if len(rest) < self._needed:
            return  # a large message is parsed once, after all of it has arrived
        self._needed = 0
        received = bytes(rest)
        rest.clear()
        offset = 0
        while (end := received.find(_END, offset)) >= 0:
            stop = end + len(_END)
            receive, words = None, _NO_WORDS
            if received.startswith(_MESSAGES, offset):
                words = received[offset:end].split(b" ")
                try:
                    stop += int(words[-1]) + len(_END)
                    receive = self._receivers.get(int(words[2]))
                except (ValueError, IndexError) as error:
                    raise ProtocolError from error
                if stop > len(received):
                    self._needed = stop - offset
                    break
            if receive is not None:
                _deliver(receive, words, received[end + len(_END) : stop - len(_END)])
            else:
                await super().parse(received[offset:stop])
                if rest is not self._rest:
                    return  # the operation ended this connection
            offset = stop
        if len(received) - offset > LINE_BYTES_MAX and not self._needed:
            raise ProtocolError
        rest += received[offset:]


def _deliver(receive: Receive, words: list[bytes], payload: bytes) -> None:
    if words[0] == b"MSG":
        receive(words[1], words[3] if len(words) == 5 else b"", payload, b"")
        return
    try:
        header_size = int(words[-2])
    except ValueError as error:
        raise ProtocolError from error
    receive(words[1], words[3] if len(words) == 6 else b"", payload[header_size:], payload[:header_size])
