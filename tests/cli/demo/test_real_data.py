"""The demo's data: real, complete, and fit to be NATS keys."""

from __future__ import annotations

import hashlib
import re
import ssl

import pytest

from eddyline.cli.demo.real_data import certificates, rule_key, suffix_rules

NATS_KEY = re.compile(r"[-/_=a-zA-Z0-9]+(\.[-/_=a-zA-Z0-9]+)*")


def test_certificates_are_named_by_what_they_are() -> None:
    found = certificates()
    assert len(found) > 100
    for key, pem in found.items():
        assert hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem.decode())).hexdigest() == key


def test_rules_are_all_there_under_keys_that_nats_takes() -> None:
    rules = suffix_rules()
    assert 9_000 < len(rules) < 15_000
    assert all(NATS_KEY.fullmatch(key) for key in rules)
    assert len(set(rules.values())) == len(rules)
    assert rules["co.uk"] == b"co.uk"


@pytest.mark.parametrize(
    ("rule", "key"),
    [("com", "com"), ("*.ck", "_any.ck"), ("!www.ck", "_not.www.ck"), ("個人.hk", "xn--gmqw5a.hk")],
)
def test_rule_becomes_a_key(rule: str, key: str) -> None:
    assert rule_key(rule) == key
