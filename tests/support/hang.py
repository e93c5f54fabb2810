"""How long a test waits for a fact at most. The bound is for hangs alone: no test says by it how fast anything is."""

from __future__ import annotations

from typing import Final

HANG_S: Final = 100.0
"""`make test` ends a test after 120 s. On two cores beside four busy loops and a second suite the slowest wait took 34 s."""
