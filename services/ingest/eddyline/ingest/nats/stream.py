"""A stream, mostly a bucket's, as JetStream reports it: identity, bounds, and the messages it may drop.

Threading: immutable.
"""

from __future__ import annotations

import calendar
import re
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from eddyline.ingest.nats.key_rule import KeyRule, own_rule

BUCKET_PATTERN: Final = re.compile(r"[A-Za-z0-9_-]{1,255}")
"""JetStream's own rule for names of buckets, and the store's bound."""
STREAM_PATTERN: Final = re.compile(r"[^\s.*>/\\]{1,255}")
"""JetStream's own rule for names of streams, and the store's bound."""
HISTORY_MAX: Final = 64
"""JetStream's own bound of a bucket's history."""
NO_BOUND_NS: Final = 0
MSG_TTL_NS_MIN: Final = 1_000_000_000
"""The shortest time to live that the server accepts for one message."""

_TIME: Final = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?Z")


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream at one moment of the server.

    Of a bucket, or, if `bucket` is "", a stream without one: every subject is a key. `plain` = it has the bucket's
    subjects and no others, so that revisions are missing only if messages are gone. `history` = newest messages kept of
    each subject, 0 = all. `last_revision` 0 = it never had a message. `limited` = the number or the bytes of its messages
    have a bound. `expiry_markers` = the server writes a marker when a key's last message expires. `unfit` = why it cannot
    be copied, as text; "" = it can. `rule_name` = how its subjects become keys. `inactive_ns_max` = longest inactivity of
    a consumer before the server removes it, 0 = no bound.
    """

    name: str
    bucket: str
    prefix: bytes
    created_ns: int
    server_ns: int
    first_revision: int
    first_ns: int
    last_revision: int
    plain: bool
    history: int
    discard_new: bool
    max_age_ns: int
    msg_ttl: bool
    expiry_markers: bool
    limited: bool
    message_count: int
    subject_count: int
    unfit: str = ""
    peer_troubles: tuple[str, ...] = ()
    rule_name: str = ""
    inactive_ns_max: int = 0

    @property
    def rule(self) -> KeyRule:
        """How its subjects become keys."""
        return KeyRule(self.prefix, self.rule_name)

    @property
    def rule_note(self) -> str:
        """The rule as text, unless it is the default one."""
        is_first = not self.bucket or self.rule == own_rule(self.bucket)
        return "" if is_first else f"keys under {self.filter_subject} ({self.rule_name})"

    @property
    def origin(self) -> str:
        """Bucket or stream, with its name, as text."""
        return f"bucket {self.bucket}" if self.bucket else f"stream {self.name}"

    @property
    def may_evict(self) -> bool:
        """True = messages may leave by limits or age, not only because the same key is written again."""
        return not self.discard_new or self.max_age_ns > 0 or self.msg_ttl

    @property
    def loss_warnings(self) -> list[str]:
        """Settings that let revisions leave before they are read, as texts."""
        warnings = []
        if self.bucket and 0 < self.history < HISTORY_MAX:
            history_text = "1 revision" if self.history == 1 else f"{self.history} revisions"
            warnings.append(f"it keeps {history_text} of a key; the maximum is {HISTORY_MAX}")
        if self.limited and not self.discard_new:
            warnings.append("its limits evict the oldest messages")
        if self.max_age_ns and not self.expiry_markers:
            warnings.append("messages expire without markers")
        return warnings

    @property
    def settings(self) -> tuple[object, ...]:
        """The part of its configuration that decides how it is read, and the meaning of missing revisions."""
        evicts = self.discard_new, self.max_age_ns, self.msg_ttl, self.expiry_markers, self.limited
        return self.prefix, self.plain, self.history, evicts

    @property
    def lifetime_ns_min(self) -> int:
        """Of a stream that may evict: a younger message is still there unless its key was written again. 0 = no bound."""
        if not self.discard_new:
            return NO_BOUND_NS
        ages = [self.max_age_ns] if self.max_age_ns else []
        return min([*ages, MSG_TTL_NS_MIN] if self.msg_ttl else ages)

    @property
    def identity(self) -> bytes:
        """Identity of the stream in gaps."""
        return self.created_ns.to_bytes(8, "little", signed=True)

    @property
    def filter_subject(self) -> str:
        """Subject that matches every key of the bucket, and nothing else that its stream may hold."""
        return self.prefix.decode() + ">"


def server_time_ns(text: str) -> int:
    """Nanoseconds since the Unix epoch of a time as the server writes it (UTC), exact.

    Raises:
        ValueError: another form.
    """
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError(f"not a UTC time: {text!r}")
    seconds = calendar.timegm(datetime.fromisoformat(match[1]).timetuple())
    return seconds * 1_000_000_000 + int((match[2] or "").ljust(9, "0"))
