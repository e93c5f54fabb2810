"""When a certificate expires, as its own bytes say it."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import certifi
import pytest

from eddyline.core.certificate_dates import not_after
from tests.support.certificates import Authority

if TYPE_CHECKING:
    from pathlib import Path


def test_every_authority_that_there_is_says_what_a_library_reads_of_it() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(certifi.where())
    known = list(zip(context.get_ca_certs(), context.get_ca_certs(binary_form=True), strict=True))
    assert len(known) > 100
    for words, der in known:
        until = ssl.cert_time_to_seconds(str(words["notAfter"]))
        assert not_after(ssl.DER_cert_to_PEM_cert(der).encode()).timestamp() == until


@pytest.mark.parametrize("year", [2049, 2050, 2099])
def test_both_forms_of_a_date_are_read(tmp_path: Path, year: int) -> None:
    until = datetime(year, 12, 31, 23, 59, 59, tzinfo=UTC)
    signed = Authority(tmp_path).sign("x", not_after=until)
    assert not_after(signed.certificate.read_bytes()) == until


def test_first_of_a_chain_is_the_one_that_counts(tmp_path: Path) -> None:
    until = datetime(2031, 1, 2, 3, 4, 5, tzinfo=UTC)
    authority = Authority(tmp_path)
    chain = authority.sign("x", not_after=until).certificate.read_bytes() + authority.own.certificate.read_bytes()
    assert not_after(b"# of a person\n" + chain) == until


@pytest.mark.parametrize(
    "pem",
    [
        b"",
        b"-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n",
        b"-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n",
        b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n",
        b"-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n",
    ],
)
def test_what_is_no_certificate_is_said_in_words(pem: bytes) -> None:
    with pytest.raises(ValueError, match=r"no certificate|no date"):
        not_after(pem)


def test_certificate_that_is_cut_off_is_said_in_words(tmp_path: Path) -> None:
    der = ssl.PEM_cert_to_DER_cert(Authority(tmp_path).own.certificate.read_text(encoding="ascii"))
    for size in range(len(der) // 2):
        with pytest.raises(ValueError, match="no date"):
            not_after(ssl.DER_cert_to_PEM_cert(der[:size]).encode())
