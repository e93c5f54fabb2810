"""The keys file: accepted and refused content; grants; principals of calls by roles."""

from __future__ import annotations

import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eddyline.core.auth.grant import (
    PRINCIPAL_BYTES_MAX,
    Grant,
    Scope,
    caller,
    on_own_behalf,
    principal_from,
    principal_metadata,
    set_caller,
)
from eddyline.core.auth.keys_file import (
    PREFIXES_BYTES_MAX,
    PREFIXES_MAX,
    MalformedKeys,
    certificate_names,
    digest_of,
    new_secret,
    parse_keys,
    parse_secret,
)
from eddyline.core.errors import PermissionDenied

SECRET = "a-secret"
DIGEST = digest_of(SECRET).hex()


def table(text: str = "", *, name: str = "one", digest: str = DIGEST) -> str:
    return f'[[key]]\nname = "{name}"\nsha256 = "{digest}"\nscopes = ["read"]\n{text}\n'


def test_a_secret_is_known_by_its_digest() -> None:
    ring = parse_keys(table('prefixes = ["orders."]\nrequests_max = 3\nwatches_max = 0'))
    grant = ring.of_digest(digest_of(SECRET))
    assert grant == Grant("one", frozenset((Scope.READ,)), ("orders.",), 3, 0)
    assert ring.of_digest(digest_of(SECRET + "x")) is None
    assert ring.of_digest(digest_of("")) is None


def test_a_certificate_is_known_by_its_name() -> None:
    ring = parse_keys('[[key]]\nname = "ingest"\ncertificate = "ingest.example"\nscopes = ["role"]\n')
    grant = ring.of_certificate("ingest.example")
    assert grant is not None
    assert grant.is_role
    assert ring.of_certificate("ingest") is None


SPIFFE = "spiffe://example.org/ns/prod/sa/billing"


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ({}, []),
        ({"common_name": "billing"}, ["billing"]),
        ({"common_name": "system:node:a"}, ["system:node:a"]),
        ({"uris": [SPIFFE]}, [SPIFFE]),
        ({"common_name": "billing", "uris": [SPIFFE], "dns": ["a.b"]}, ["billing", SPIFFE, "dns:a.b"]),
        ({"uris": ["urn:x:y", "dns:a.b", ""]}, []),
        ({"common_name": SPIFFE}, []),
        ({"common_name": "dns:a.b"}, []),
    ],
)
def test_names_of_a_certificate_are_distinguished_by_kind(names: dict[str, Any], expected: list[str]) -> None:
    assert certificate_names(**names) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no \\[\\[key\\]\\] table"),
        ("key = 3", "no \\[\\[key\\]\\] table"),
        ("keys = []", "has 'keys'"),
        ("[[key]]\nname =", "is not TOML"),
        ('[[key]]\nname = "a b"', "number 1 has no valid name"),
        (table("scope = 1"), "key one has the unknown field 'scope'"),
        (table() + table(), "key one is defined twice"),
        (table() + table(name="two"), "key two has the same sha256 as key one"),
        (table(digest="12"), "not 64 hex digits"),
        ('[[key]]\nname = "one"\nscopes = ["read"]', "neither sha256 nor certificate"),
        (f'[[key]]\nname = "one"\nsha256 = "{DIGEST}"', "has no scopes"),
        (f'[[key]]\nname = "one"\nsha256 = "{DIGEST}"\nscopes = ["reed"]', "has the scope 'reed'"),
        (f'[[key]]\nname = "one"\nsha256 = "{DIGEST}"\nscopes = "read"', "scopes that are not a list"),
        (table("prefixes = []"), "an empty list of prefixes"),
        (table('prefixes = [""]'), "has the prefix ''"),
        (table('prefixes = ["*"]'), "which no valid name begins with"),
        (table(f"prefixes = {[f'p{n}' for n in range(PREFIXES_MAX + 1)]}"), "more than 64 prefixes"),
        (table("requests_max = -1"), "requests_max that is not a whole number"),
        (table("watches_max = true"), "watches_max that is not a whole number"),
        (table().replace('"read"', '"role"') + 'prefixes = ["a"]', "has scope role and prefixes"),
        ("key = " + "[" * 5_000, "is not TOML"),
    ],
)
def test_a_malformed_file_is_refused_with_the_reason(text: str, said: str) -> None:
    with pytest.raises(MalformedKeys, match=said):
        parse_keys(text)


@given(st.text(max_size=200))
def test_any_text_is_a_ring_or_refused(text: str) -> None:
    with pytest.raises(MalformedKeys):
        parse_keys(text)


@pytest.mark.parametrize("broken", [f'[[key]]\nname = "x"\nsecret = "{SECRET}"', f'"{SECRET}" = \n', f"{SECRET}"])
def test_no_refusal_shows_a_secret(broken: str) -> None:
    with pytest.raises(MalformedKeys) as caught:
        parse_keys(broken)
    assert SECRET not in str(caught.value)


def test_new_secrets_are_long_and_differ() -> None:
    made = {new_secret() for _ in range(50)}
    assert len(made) == 50
    assert all(len(secret) >= 43 and parse_secret(secret.encode() + b"\n") == secret for secret in made)


@pytest.mark.parametrize("content", [b"", b"\n", b"two words", b"a\nb", "schlüssel".encode(), b"\xff", b"x" * 2_000])
def test_a_file_that_holds_no_secret_is_refused(content: bytes) -> None:
    with pytest.raises(MalformedKeys, match="one line"):
        parse_secret(content)


def test_prefixes_narrow_the_prefix_of_a_list() -> None:
    grant = Grant("one", frozenset(Scope), ("orders.", "orders.eu.", "prices"))
    assert grant.narrowed("") == ("orders.", "prices")
    assert grant.narrowed("orders.eu.de") == ("orders.eu.de",)
    assert grant.narrowed("o") == ("orders.",)
    assert grant.narrowed("x") == ()
    assert Grant("all", frozenset(Scope)).narrowed("x") == ("x",)


names = st.text(alphabet="ab.", min_size=1, max_size=4)


@given(st.lists(names, min_size=1, max_size=5), names | st.just(""), st.lists(names, max_size=20, unique=True))
def test_narrowed_prefixes_are_sorted_and_do_not_overlap(own: list[str], asked: str, there: list[str]) -> None:
    grant = Grant("one", frozenset(Scope), tuple(own))
    listed = [name for prefix in grant.narrowed(asked) for name in sorted(there) if name.startswith(prefix)]
    assert listed == sorted(name for name in there if name.startswith(asked) and grant.covers(name))


async def test_a_principal_is_carried_as_it_is() -> None:
    grant = Grant("one", frozenset((Scope.READ, Scope.ADMIN)), ("orders.",), requests_max=5)
    set_caller(grant)
    ((_, text),) = principal_metadata()
    assert principal_from(text, via="ingest") == Grant("one", grant.scopes, ("orders.",), via="ingest")
    with on_own_behalf():
        assert principal_metadata() == ()
    assert caller() is grant
    set_caller(Grant("store", frozenset((Scope.ROLE,))))
    assert principal_metadata() == ()


async def test_the_largest_principal_fits_its_bound() -> None:
    length = PREFIXES_BYTES_MAX // PREFIXES_MAX
    prefixes = tuple(f"{n:02}" + "x" * (length - 2) for n in range(PREFIXES_MAX))
    grant = Grant("n" * 128, frozenset(Scope) - {Scope.ROLE}, prefixes)
    set_caller(grant)
    ((_, text),) = principal_metadata()
    assert len(text) < PRINCIPAL_BYTES_MAX
    assert principal_from(text, via="r").prefixes == prefixes


@given(st.text(alphabet=string.printable, max_size=80))
def test_a_malformed_principal_is_refused(text: str) -> None:
    with pytest.raises(PermissionDenied):
        principal_from(text, via="role")


@pytest.mark.parametrize(
    "text",
    [
        '{"name":"x","scopes":["role"],"prefixes":[]}',
        '{"name":"","scopes":["read"],"prefixes":[]}',
        '{"name":"x","scopes":["reed"],"prefixes":[]}',
        '{"name":"x","scopes":"read","prefixes":[]}',
        '{"name":"x","scopes":["read"]}',
        "[" * 3_000,
        "x" * (PRINCIPAL_BYTES_MAX + 1),
    ],
)
def test_a_role_cannot_call_for_a_role_or_an_invalid_principal(text: str) -> None:
    with pytest.raises(PermissionDenied):
        principal_from(text, via="role")
