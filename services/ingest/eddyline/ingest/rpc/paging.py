"""Page tokens of ListSources: URL-safe base64 without padding of `u8 1, u64 xxh3_64 of the name, the name`.

A token holds the last name of its page, so that pages stay right while sources come and go; the hash is no secret, it
tells a damaged token.
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
    """Entries of a page: 0 = the default, more than the maximum is the maximum.

    Raises:
        InvalidArgument: it is negative.
    """
    if page_size < 0:
        raise InvalidArgument(f"page_size is 0 or more, not {page_size}", field="page_size", pageSize=page_size)
    return min(page_size, PAGE_SIZE_MAX) or PAGE_SIZE_DEFAULT


def token_after(name: str) -> str:
    """The token for what follows `name`."""
    encoded = name.encode()
    return base64.urlsafe_b64encode(_FORMAT + xxh3_64_digest(encoded) + encoded).rstrip(b"=").decode()


def name_after(token: str) -> str:
    """The name that a token says to go on after; empty for no token.

    Raises:
        PageTokenInvalid: this call did not give it.
    """
    if not token:
        return ""
    try:
        name = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)[_HEAD_BYTES:].decode()
    except ValueError:
        name = ""
    # Compared as a whole: base64 reads several texts as the same bytes.
    if token != token_after(name):
        raise PageTokenInvalid("the page token is not one that this call gave", field="page_token")
    return name
