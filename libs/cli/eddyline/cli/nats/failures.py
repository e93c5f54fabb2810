"""Exceptions of nats-py if NATS is unreachable, has no leader, refuses, or ends the connection."""

from __future__ import annotations

import asyncio
from typing import Final

import nats.errors

NATS_FAILURES: Final = (nats.errors.Error, OSError, TimeoutError, asyncio.InvalidStateError)
