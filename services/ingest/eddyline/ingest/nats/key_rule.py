"""The rule by which a bucket's subjects become keys: the common prefix of the subjects of its stream.

A stream's configuration names the possible prefixes, and the first message that the stream holds decides between them:

    own subjects   $KV.<bucket>.            a bucket that takes its writes; a mirror or a source that is transformed to it
    mirror         $KV.<mirrored bucket>.   a mirror keeps the subjects of the bucket that it mirrors
    transform      <literal start of dest>  a subject_transform of the stream, its mirror or one of its sources
    mirror chain   $KV.<any bucket>.        a mirror of a mirror keeps the subjects of the first bucket

A stream that holds subjects of two prefixes is not copied: two of its messages could be one key.
Source: NATS ADR-8 (buckets, mirrors), ADR-30 (subject transforms).
Threading: immutable.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

BUCKET_STREAM: Final = "KV_"
"""Prefix of the name of a bucket's stream."""
SUBJECTS_SHOWN: Final = 3
SUBJECT_CHARS_SHOWN: Final = 80

_CHAIN: Final = re.compile(rb"\$KV\.[^.]+\.")


class KeyRule(NamedTuple):
    """Subjects begin with `prefix`, and the rest of each is its key. `name` = the rule as text."""

    prefix: bytes
    name: str


@dataclass(frozen=True, slots=True)
class StraySubjects:
    """Subjects of a bucket's stream that are no keys of the bucket: their number, and the first of them."""

    count: int
    subject_count: int
    first: tuple[str, ...]

    def reason(self, rule: KeyRule) -> str:
        """Why the bucket cannot be copied; `rule` = that of its keys."""
        subjects_text = ", ".join(subject[:SUBJECT_CHARS_SHOWN] for subject in self.first)
        more = ", …" if self.count > len(self.first) else ""
        prefix = rule.prefix.decode(errors="backslashreplace")
        return (
            f"{self.count} of its {self.subject_count} subjects are not keys: {subjects_text}{more}; "
            f"its keys are under {prefix}> ({rule.name})"
        )


def own_rule(bucket: str) -> KeyRule:
    """Rule of a bucket whose stream takes its writes."""
    return KeyRule(f"$KV.{bucket}.".encode(), "the bucket's own subjects")


def possible_rules(bucket: str, config: Mapping[str, object]) -> tuple[KeyRule, ...]:
    """Rules that the stream's configuration allows, the likeliest first."""
    own = own_rule(bucket)
    mirror = config.get("mirror")
    sources = config.get("sources")
    transforms = [_transform(config.get("subject_transform"))]
    for upstream in [mirror, *(sources if isinstance(sources, list) else [])]:
        upstream_transforms = upstream.get("subject_transforms") if isinstance(upstream, dict) else None
        transforms += (
            [_transform(entry) for entry in upstream_transforms] if isinstance(upstream_transforms, list) else []
        )
    written = [
        KeyRule(start, "its subject_transform") for start in transforms if start and not start.startswith(own[0])
    ]
    if isinstance(mirror, dict):
        name = str(mirror.get("name", "")).removeprefix(BUCKET_STREAM)
        kept = KeyRule(f"$KV.{name}.".encode(), f"a mirror keeps the subjects of bucket {name}")
        return (*written, own, kept) if any(transforms) else (kept, own)
    return (own, *written)


def rule_of(rules: tuple[KeyRule, ...], subject: bytes, *, is_mirror: bool) -> KeyRule:
    """Rule under which the stream's first message is a key; the likeliest if none matches."""
    for rule in rules:
        if subject.startswith(rule.prefix):
            return rule
    chain = _CHAIN.match(subject) if is_mirror else None
    if chain is None:
        return rules[0]
    name = chain[0].split(b".")[1].decode(errors="backslashreplace")
    return KeyRule(chain[0], f"a mirror of a mirror keeps the subjects of bucket {name}")


def _transform(transform: object) -> bytes:
    """Common prefix of the subjects that a transform writes; b"" = none."""
    dest = transform.get("dest") if isinstance(transform, dict) else None
    if not isinstance(dest, str):
        return b""
    tokens = dest.split(".")
    literal: list[str] = []
    for token in tokens:
        if token in ("*", ">") or "{{" in token or (token.startswith("$") and token[1:].isdigit()):
            break
        literal.append(token)
    return (".".join(literal) + ".").encode() if literal and len(literal) < len(tokens) else b""
