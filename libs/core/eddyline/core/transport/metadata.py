"""Metadata of calls that write into a bucket."""

from __future__ import annotations

from typing import Final

WRITTEN_REVISION: Final = "eddyline-written-revision"
"""Initial metadata of a call that waits for the store: the write's revision in decimal, sent when NATS has the write.
A caller that stops waiting knows from it that there is nothing to repeat."""
