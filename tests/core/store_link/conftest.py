"""A store behind each implementation of `StoreLink`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.store.both_links import FORMS, Form, LinkedStore, linked_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture(params=FORMS)
async def store(request: pytest.FixtureRequest) -> AsyncIterator[LinkedStore]:
    form: Form = request.param
    async with linked_store(form, topics_max=4, cache_bytes=0) as linked:
        yield linked
