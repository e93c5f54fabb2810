"""A bucket with the settings that bound its writes.

Threading: immutable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eddyline.core.errors import BucketForbids
from eddyline.ingest.nats.key_rule import own_rule

if TYPE_CHECKING:
    from eddyline.ingest.nats.stream import Stream


@dataclass(frozen=True, slots=True)
class BucketInfo:
    """One bucket at one moment. `message_bytes_max` bounds value and headers together, 0 = no bound of the bucket's own."""

    stream: Stream
    message_bytes_max: int
    mirror: bool
    sealed: bool
    rollup: bool

    def check_takes(self, *, ttl: bool, rollup: bool) -> None:
        """Refuse a write that the bucket's settings do not allow.

        Raises:
            BucketForbids.
        """
        if self.mirror:
            self._forbid("mirror", "is a mirror; write into the mirrored bucket")
        if self.stream.rule != own_rule(self.stream.bucket):
            self._forbid("subject_transform", f"stores writes under other subjects: {self.stream.rule_name}")
        if self.sealed:
            self._forbid("sealed", "is sealed and accepts no writes")
        if ttl and not self.stream.msg_ttl:
            self._forbid("allow_msg_ttl", "does not allow a TTL per entry")
        if rollup and not self.rollup:
            self._forbid("allow_rollup_hdrs", "does not allow purges")

    def _forbid(self, setting: str, words: str) -> None:
        name = self.stream.bucket
        raise BucketForbids(f"bucket {name} {words} (setting {setting})", bucket=name, setting=setting)
