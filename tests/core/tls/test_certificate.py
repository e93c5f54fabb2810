"""Expiry and key kind of certificates."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import certifi
import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from eddyline.core.tls.certificate import has_supported_key, not_after
from eddyline.core.tls.files import MalformedTls, read_certificate
from tests.support.certificates import Authority, signed_by_itself

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes


@pytest.mark.filterwarnings("ignore:Parsed a serial number:UserWarning")
def test_expiry_of_every_public_authority_is_the_one_that_openssl_reads() -> None:
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
def test_invalid_pem_is_refused_with_a_reason(pem: bytes) -> None:
    with pytest.raises(ValueError, match="expiry date"):
        not_after(pem)
    with pytest.raises(ValueError, match="key cannot be read"):
        has_supported_key(pem)


def test_truncated_certificate_is_refused_with_a_reason(tmp_path: Path) -> None:
    der = ssl.PEM_cert_to_DER_cert(Authority(tmp_path).own.certificate.read_text(encoding="ascii"))
    for size in range(len(der) // 2):
        with pytest.raises(ValueError, match="expiry date"):
            not_after(ssl.DER_cert_to_PEM_cert(der[:size]).encode())


KEYS: dict[str, Callable[[], CertificateIssuerPrivateKeyTypes]] = {
    "RSA": lambda: rsa.generate_private_key(65_537, 2_048),
    "P-256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "P-384": lambda: ec.generate_private_key(ec.SECP384R1()),
    "P-521": lambda: ec.generate_private_key(ec.SECP521R1()),
    "Ed25519": ed25519.Ed25519PrivateKey.generate,
}


@pytest.mark.parametrize("kind", KEYS)
async def test_key_is_accepted_if_and_only_if_grpc_completes_a_handshake_with_it(tmp_path: Path, kind: str) -> None:
    signed = signed_by_itself(tmp_path, KEYS[kind]())
    chain, key = signed.certificate.read_bytes(), signed.key.read_bytes()
    shakes = await shakes_hands(chain, key)
    assert has_supported_key(chain) is shakes
    if shakes:
        assert read_certificate(str(signed.certificate), str(signed.key)).chain == chain
    else:
        with pytest.raises(MalformedTls, match="gRPC"):
            read_certificate(str(signed.certificate), str(signed.key))


async def shakes_hands(chain: bytes, key: bytes) -> bool:
    """Whether gRPC serves with it."""
    server = grpc.aio.server()
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(key, chain)]))
    await server.start()
    try:
        async with grpc.aio.secure_channel(f"127.0.0.1:{port}", grpc.ssl_channel_credentials(chain)) as channel:
            calls: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/t.T/Nowhere")
            with pytest.raises(grpc.aio.AioRpcError) as ended:
                await calls(b"", timeout=20)
    finally:
        await server.stop(0)
    assert ended.value.code() in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNAVAILABLE)
    return ended.value.code() is grpc.StatusCode.UNIMPLEMENTED
