"""Header compression (HPACK, RFC 7541): a decoder with the dynamic table, and literals for what we send.

A server of gRPC sends a few constant fields. They are encoded as literals that no table remembers, so an encoder has no
state, and equal headers are equal bytes. Clients do use the dynamic table, since RFC 9113 gives them one of 4 096 bytes
unasked.

Memo: clients repeat whole blocks, call after call. A block that leaves the dynamic table as it is gives the same fields
until the table changes, so its `HeaderBlock` is kept until then. Equal blocks of a connection are thereby one object, and
its `request` is parsed once.

Bounds: of a block and of a decoded list (`BlockDecoder`); an integer has at most 28 bits; a string has at most the bytes
that its block has left; Huffman coding yields at most 8/5 of them. The work for a block is linear in its bytes.
Failure: `ConnectionFailed` with COMPRESSION_ERROR. The table is then unusable, and so is the connection (RFC 9113, 4.3).
"""

from __future__ import annotations

from collections import deque
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from hpack.exceptions import HPACKError
from hpack.huffman_table import decode_huffman

from eddyline.wire.http2.errors import ConnectionFailed, ErrorCode

if TYPE_CHECKING:
    from eddyline.wire.http2.request import Request

TABLE_BYTES_MAX: Final = 4_096
"""Of the dynamic table: the default of RFC 9113, 6.5.2, which we leave as it is, so no SETTINGS has to be waited for."""
ENTRY_BYTES: Final = 32
"""Added to an entry's name and value, in the table and in a list's size (4.1)."""
INTEGER_SHIFT_MAX: Final = 21
MEMO_BLOCKS_MAX: Final = 64
MEMO_BLOCK_BYTES_MAX: Final = 512
"""64 blocks of 512 bytes: at most 32 KiB of keys a connection. Larger blocks are decoded each time."""
HUFFMAN_CACHED_BYTES_MAX: Final = 128
HUFFMAN_CACHE_STRINGS: Final = 4_096
"""Of all connections. A cached string has at most 128 bytes and gives at most 204: 1.6 MiB."""


class Field(NamedTuple):
    """A header field."""

    name: bytes
    value: bytes


class HeaderBlock:
    """The fields of one block in their order.

    `is_oversized` = the list exceeds its bound; then `fields` lacks what came after, and only the table is right.
    `request` is set by the connection once it has parsed the fields.
    """

    __slots__ = ("fields", "is_oversized", "request")

    def __init__(self, fields: tuple[Field, ...], is_oversized: bool) -> None:
        self.fields = fields
        self.is_oversized = is_oversized
        self.request: Request | None = None


def _static(*fields: str) -> tuple[Field, ...]:
    pairs = (field.partition("=") for field in fields)
    return tuple(Field(name.encode(), value.encode()) for name, _, value in pairs)


STATIC: Final = _static(
    *(":authority", ":method=GET", ":method=POST", ":path=/", ":path=/index.html", ":scheme=http", ":scheme=https"),
    *(":status=200", ":status=204", ":status=206", ":status=304", ":status=400", ":status=404", ":status=500"),
    *("accept-charset", "accept-encoding=gzip, deflate", "accept-language", "accept-ranges", "accept"),
    *("access-control-allow-origin", "age", "allow", "authorization", "cache-control", "content-disposition"),
    *("content-encoding", "content-language", "content-length", "content-location", "content-range", "content-type"),
    *("cookie", "date", "etag", "expect", "expires", "from", "host", "if-match", "if-modified-since", "if-none-match"),
    *("if-range", "if-unmodified-since", "last-modified", "link", "location", "max-forwards", "proxy-authenticate"),
    *("proxy-authorization", "range", "referer", "refresh", "retry-after", "server", "set-cookie"),
    *("strict-transport-security", "transfer-encoding", "user-agent", "vary", "via", "www-authenticate"),
)
"""The static table (Appendix A); its first entry has index 1."""
assert len(STATIC) == 61


class BlockDecoder:
    """Decoder of one connection's header blocks, which it must get in their order."""

    __slots__ = ("_entries", "_list_bytes_max", "_memo", "_table_bytes", "_table_limit")

    def __init__(self, *, list_bytes_max: int) -> None:
        """`list_bytes_max` bounds names, values and 32 bytes a field (RFC 9113, 6.5.2)."""
        self._list_bytes_max = list_bytes_max
        self._entries: deque[Field] = deque()
        self._table_bytes = 0
        self._table_limit = TABLE_BYTES_MAX
        self._memo: dict[bytes, HeaderBlock] = {}

    def decode(self, block: bytes) -> HeaderBlock:
        """Decode a whole block. An equal block may give the same object.

        Raises:
            ConnectionFailed: COMPRESSION_ERROR; the decoder must not be used again.
        """
        known = self._memo.get(block)
        if known is not None:
            return known
        try:
            decoded, changed = self._decode(block)
        except (IndexError, HPACKError):
            _fail("a header block is cut, or names an index that is not in the table")
        if changed:
            self._memo.clear()
        elif len(block) <= MEMO_BLOCK_BYTES_MAX and len(self._memo) < MEMO_BLOCKS_MAX:
            self._memo[block] = decoded
        return decoded

    def _decode(self, block: bytes) -> tuple[HeaderBlock, bool]:
        """Return the fields, and whether the table changed. Raises IndexError where bytes or an index are missing."""
        fields: list[Field] = []
        at, list_bytes, changed, is_first = 0, 0, False, True
        while at < len(block):
            first = block[at]
            if first & 0x80:  # 6.1: indexed field
                index, at = _integer(block, at, 0x7F)
                field = self._entry(index)
            elif first & 0xE0 == 0x20:  # 6.3: size of the table, only before the first field (4.2)
                limit, at = _integer(block, at, 0x1F)
                if not is_first or limit > TABLE_BYTES_MAX:
                    _fail("the size of the dynamic table changes inside a block, or above its bound")
                self._table_limit, changed = limit, True
                self._evict()
                continue
            else:  # 6.2: a literal; 0x40 = with indexing, 0x10 = never indexed, 0 = without
                is_indexed = bool(first & 0x40)
                index, at = _integer(block, at, 0x3F if is_indexed else 0x0F)
                if index:
                    name = self._entry(index).name
                else:
                    name, at = _string(block, at)
                value, at = _string(block, at)
                field = Field(name, value)
                if is_indexed:
                    self._insert(field)
                    changed = True
            is_first = False
            list_bytes += len(field.name) + len(field.value) + ENTRY_BYTES
            if list_bytes <= self._list_bytes_max:
                fields.append(field)
        return HeaderBlock(tuple(fields), list_bytes > self._list_bytes_max), changed

    def _entry(self, index: int) -> Field:
        if index <= len(STATIC):
            if not index:
                raise IndexError
            return STATIC[index - 1]
        return self._entries[index - len(STATIC) - 1]

    def _insert(self, field: Field) -> None:
        """4.4: what does not fit empties the table, and is no error."""
        self._entries.appendleft(field)
        self._table_bytes += len(field.name) + len(field.value) + ENTRY_BYTES
        self._evict()

    def _evict(self) -> None:
        while self._table_bytes > self._table_limit:
            oldest = self._entries.pop()
            self._table_bytes -= len(oldest.name) + len(oldest.value) + ENTRY_BYTES


def encode_field(name: bytes, value: bytes) -> bytes:
    """Return a literal field without indexing, names and values as they are (6.2.2)."""
    return b"\x00" + _encode_string(name) + _encode_string(value)


STATUS_200: Final = b"\x88"
""":status=200, which has index 8."""


def _encode_string(text: bytes) -> bytes:
    rest = len(text) - 0x7F
    if rest < 0:
        return bytes((len(text),)) + text
    length = bytearray((0x7F,))
    while rest > 0x7F:
        length.append(rest & 0x7F | 0x80)
        rest >>= 7
    length.append(rest)
    return bytes(length) + text


def _integer(block: bytes, at: int, mask: int) -> tuple[int, int]:
    """Return the integer whose prefix is the bits `mask` of the byte at `at`, and where it ends (5.1)."""
    value = block[at] & mask
    at += 1
    if value < mask:
        return value, at
    shift = 0
    while True:
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > INTEGER_SHIFT_MAX:
            _fail("an integer in a header block has more than 28 bits")


def _string(block: bytes, at: int) -> tuple[bytes, int]:
    """Return the string at `at`, and where it ends (5.2)."""
    is_huffman = block[at] & 0x80
    length, at = _integer(block, at, 0x7F)
    end = at + length
    if end > len(block):
        raise IndexError
    text = block[at:end]
    if not is_huffman:
        return text, end
    return (_huffman_cached if length <= HUFFMAN_CACHED_BYTES_MAX else decode_huffman)(text), end


@lru_cache(HUFFMAN_CACHE_STRINGS)
def _huffman_cached(text: bytes) -> bytes:
    return decode_huffman(text)


def _fail(reason: str) -> NoReturn:
    raise ConnectionFailed(ErrorCode.COMPRESSION_ERROR, reason)
