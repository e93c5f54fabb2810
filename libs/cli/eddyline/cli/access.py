"""How a command gets in: the flags of every verb that calls a cluster, and the environment behind them.

There is no flag for a secret itself: whoever lists processes would read it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from eddyline.cli.errors import EXIT_USAGE, CommandError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from eddyline.core.auth.caller_channel import CallerAccess

_CLOSED: Final = ("Socket closed", "Connection reset", "Broken pipe", "_ALERT_", "TSI_DATA_CORRUPTED")
"""gRPC's texts for a connection that ended before an answer came. A role with TLS ends it so if the caller uses none, and so
does a role that requires a client certificate and gets none of its authority; the last text is that of its alert."""
_UNTRUSTED: Final = "CERTIFICATE_VERIFY_FAILED"
_NO_TLS_THERE: Final = "WRONG_VERSION_NUMBER"
ACCESS_FLAGS = {
    "key_file": "file with the key's secret (default: $EDDYLINE_KEY_FILE, else the secret in $EDDYLINE_KEY)",
    "tls_ca": "certificates of the authority that signed the cluster's; uses TLS (default: $EDDYLINE_TLS_CA)",
    "tls_cert": "client certificate, if the cluster requires one (default: $EDDYLINE_TLS_CERT)",
    "tls_key": "its key (default: $EDDYLINE_TLS_KEY)",
}
"""By the arguments' names: what each is."""


def add_access(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    for name, what in ACCESS_FLAGS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", default="", metavar="FILE", help=what)


def access_from_args(arguments: argparse.Namespace, environ: Mapping[str, str]) -> CallerAccess:
    """Access by the arguments, else by the environment.

    Raises:
        CommandError: it cannot be used.
    """
    from eddyline.client.transport.access import ENVIRONMENT, AccessInvalid, access_of_environment

    given = {name: str(getattr(arguments, name)) for name in ACCESS_FLAGS}
    try:
        return access_of_environment(environ, **given)
    except AccessInvalid as error:
        names = ", ".join(ENVIRONMENT.values())
        advice = f"check --key-file, --tls-ca, --tls-cert, --tls-key and the variables {names}"
        raise CommandError(str(error), advice, exit_code=EXIT_USAGE) from None


def tls_cause(message: str, access: CallerAccess) -> str:
    """The TLS setting that may explain a missing answer, as a key for `EddylineError.advice`; empty = none.

    `message` is gRPC's.
    """
    if _UNTRUSTED in message:
        return "untrusted"
    if _NO_TLS_THERE in message:
        return "noTlsThere"
    if not any(words in message for words in _CLOSED):
        return ""
    if access.tls is None:
        return "noTls"
    return "noCertificate" if access.tls.certificate is None else "certificateRefused"
