"""Seeds of simulations, and the command that replays a failing one."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest


def seeds(count: int) -> list[int]:
    """Return the seed of EDDYLINE_TEST_SEED, else EDDYLINE_TEST_SEEDS many, else `count` of them."""
    seed = os.environ.get("EDDYLINE_TEST_SEED", "")
    return [int(seed)] if seed else list(range(int(os.environ.get("EDDYLINE_TEST_SEEDS", count))))


@contextmanager
def naming(seed: int, capsys: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Print the seed of a simulation that fails, with the command that replays it."""
    try:
        yield
    except BaseException:
        with capsys.disabled():
            print(f"\nsimulation failed; replay it: make test-sim SEED={seed}")  # noqa: T201
        raise
