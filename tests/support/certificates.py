"""Certificates of a test's own, made by the openssl command."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate and its key, as PEM files."""

    certificate: Path
    key: Path


class Authority:
    """An authority that signs for a test. Needs the openssl command; without it the test is skipped."""

    def __init__(self, folder: Path) -> None:
        if shutil.which("openssl") is None:
            pytest.skip("no openssl command")
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.own = self._files("ca")
        _openssl(*_new_key(self.own.key), "-x509", "-days", "1", "-subj", "/CN=ca", "-out", str(self.own.certificate))

    def sign(self, name: str) -> Certificate:
        """A certificate for 127.0.0.1 and localhost."""
        files = self._files(name)
        request, more = self._folder / f"{name}.csr", self._folder / f"{name}.ext"
        more.write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
        _openssl(*_new_key(files.key), "-subj", f"/CN={name}", "-out", str(request))
        signer = ("-CA", str(self.own.certificate), "-CAkey", str(self.own.key), "-CAcreateserial")
        ends = ("-days", "1", "-extfile", str(more), "-out", str(files.certificate))
        _openssl("x509", "-req", "-in", str(request), *signer, *ends)
        return files

    def _files(self, name: str) -> Certificate:
        return Certificate(self._folder / f"{name}.pem", self._folder / f"{name}.key")


def encrypt_key(certificate: Certificate, to: Path) -> Path:
    """The key under a passphrase."""
    _openssl("ec", "-in", str(certificate.key), "-aes256", "-passout", "pass:hush", "-out", str(to))
    return to


def _new_key(path: Path) -> tuple[str, ...]:
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
    return ("req", *curve, "-nodes", "-keyout", str(path))


def _openssl(*arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
