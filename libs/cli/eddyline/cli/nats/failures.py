"""What nats-py raises where NATS is away, has no leader, refuses, or breaks off."""

from __future__ import annotations

import asyncio
from typing import Final

import nats.errors

NATS_FAILURES: Final = (nats.errors.Error, OSError, TimeoutError, asyncio.InvalidStateError)
