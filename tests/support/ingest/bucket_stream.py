"""A stream's figures, for tests without a server."""

from __future__ import annotations

from typing import Final

from eddyline.ingest.nats.stream import Stream

BUCKET_STREAM: Final = Stream(
    name="KV_b",
    bucket="b",
    prefix=b"$KV.b.",
    created_ns=1,
    server_ns=100,
    first_revision=1,
    first_ns=10,
    last_revision=10,
    plain=True,
    history=64,
    discard_new=True,
    max_age_ns=0,
    msg_ttl=False,
    expiry_markers=False,
    limited=False,
    message_count=10,
    subject_count=5,
)
"""The stream of bucket `b` with ten messages of five keys, made by a client: no age, no limit, no markers."""
