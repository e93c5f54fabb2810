"""Page tokens: opaque to callers, bound to the call and its arguments.

A token is URL-safe base64, without padding, of `u8 1, u64 xxh3_64 of (call, argument, name), name`. It holds the last
name of its page, so that pages stay correct while names are added and removed. The hash is no secret: it detects a
damaged token, or one of another call or of other arguments.
"""

from __future__ import annotations

import base64
from typing import Final

from xxhash import xxh3_64_digest

from eddyline.core.errors import InvalidArgument, PageTokenInvalid

PAGE_SIZE_DEFAULT: Final = 100
PAGE_SIZE_MAX: Final = 1_000

_FORMAT: Final = b"\x01"
_HEAD_BYTES: Final = 9


def page_limit(page_size: int) -> int:
    """Return the number of entries of a page: 0 = the default; larger values are cut to the maximum.

    Raises:
        InvalidArgument: it is negative.
    """
    if page_size < 0:
        raise InvalidArgument(f"page_size must be 0 or more, not {page_size}", field="page_size", pageSize=page_size)
    return min(page_size, PAGE_SIZE_MAX) or PAGE_SIZE_DEFAULT


def token_after(name: str, *, call: str, argument: str = "") -> str:
    """Return the token for the page after `name` in a `call` with this `argument`."""
    encoded = name.encode()
    return base64.urlsafe_b64encode(_FORMAT + _bound(encoded, call, argument) + encoded).rstrip(b"=").decode()


def name_after(token: str, *, call: str, argument: str = "") -> str:
    """Return the name after which a token's page begins; empty for no token.

    Raises:
        PageTokenInvalid: it is not from this call with this argument.
    """
    if not token:
        return ""
    try:
        raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        name = raw[_HEAD_BYTES:].decode()
    except ValueError:
        raise _invalid() from None
    # Compared as a whole: base64 decodes several texts to the same bytes.
    if token != token_after(name, call=call, argument=argument):
        raise _invalid()
    return name


def _bound(name: bytes, call: str, argument: str) -> bytes:
    return xxh3_64_digest(b"\x00".join((call.encode(), argument.encode(), name)))


def _invalid() -> PageTokenInvalid:
    return PageTokenInvalid("the page token does not belong to this call with these arguments", field="page_token")
