"""What a write into a bucket tells beside its answer, as metadata of the call."""

from __future__ import annotations

from typing import Final

WRITTEN_REVISION: Final = "eddyline-written-revision"
"""Initial metadata of a call that waits for the store: the write's revision in decimal, sent when NATS has the write.
A caller that gives the wait up knows by it that there is nothing to repeat."""
