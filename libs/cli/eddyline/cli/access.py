"""How a command gets in: the flags of every verb that calls a cluster, and the environment behind them.

There is no flag for a secret itself: whoever lists processes would read it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eddyline.cli.failure import EXIT_USAGE, CommandError
from eddyline.client.access import ENVIRONMENT, AccessInvalid, access_of_environment

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from eddyline.core.caller_channel import CallerAccess

_FLAGS = {
    "key_file": "file with the key's secret (default: $EDDYLINE_KEY_FILE, else the secret in $EDDYLINE_KEY)",
    "tls_ca": "certificates of the authority that signed the cluster's; uses TLS (default: $EDDYLINE_TLS_CA)",
    "tls_cert": "own certificate, where the cluster asks for one (default: $EDDYLINE_TLS_CERT)",
    "tls_key": "its key (default: $EDDYLINE_TLS_KEY)",
}


def add_access(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    for name, what in _FLAGS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", default="", metavar="FILE", help=what)


def asked_access(arguments: argparse.Namespace, environ: Mapping[str, str]) -> CallerAccess:
    """What the arguments and the environment say.

    Raises:
        CommandError: it cannot be used.
    """
    given = {name: str(getattr(arguments, name)) for name in _FLAGS}
    try:
        return access_of_environment(environ, **given)
    except AccessInvalid as error:
        names = ", ".join(ENVIRONMENT.values())
        advice = f"look at --key-file, --tls-ca, --tls-cert, --tls-key, or what is set of {names}"
        raise CommandError(str(error), advice, exit_code=EXIT_USAGE) from None
