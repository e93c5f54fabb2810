"""The real data: CA certificates as certifi ships them, and the Public Suffix List as publicsuffixlist ships it.

Both are facts about the Internet that change in real life and are looked up by key, which is what a KV bucket is for.
"""

from __future__ import annotations

import hashlib
import re
import ssl
from pathlib import Path

import certifi
import idna
import publicsuffixlist

_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----\n.*?\n-----END CERTIFICATE-----\n", re.DOTALL)


def certificates() -> dict[str, bytes]:
    """CA certificates: SHA-256 of the DER in hex, to PEM."""
    bundle = Path(certifi.where()).read_text(encoding="ascii", errors="replace")
    return {
        hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest(): pem.encode() for pem in _CERTIFICATE.findall(bundle)
    }


def suffix_rules() -> dict[str, bytes]:
    """Public suffix rules: the rule as a NATS key, to the rule in UTF-8."""
    text = Path(publicsuffixlist.PSLFILE).read_text(encoding="utf-8")
    rules: dict[str, bytes] = {}
    for line in text.splitlines():
        rule = line.split(maxsplit=1)[0] if line.strip() else ""
        if rule and not rule.startswith("//"):
            rules[rule_key(rule)] = rule.encode()
    return rules


def rule_key(rule: str) -> str:
    """A rule as a NATS key: labels as IDNA A-labels, `*` as `_any`, a leading `!` as `_not.`."""
    prefix, rule = ("_not.", rule[1:]) if rule.startswith("!") else ("", rule)
    return prefix + ".".join("_any" if label == "*" else _a_label(label) for label in rule.split("."))


def _a_label(label: str) -> str:
    return label if label.isascii() else idna.encode(label, uts46=True).decode("ascii")
