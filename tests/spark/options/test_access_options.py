"""Options of keys and TLS: which goes before which, what is refused by its name, and that no text has a secret."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest

from eddyline.core.errors import EddylineError
from eddyline.export.split.calls import Cluster
from eddyline.export.split.channels import NO_ACCESS
from eddyline.spark.options.access import AccessOptions, asked_access, read_access
from eddyline.spark.options.read import parse_options, with_access
from eddyline.spark.options.write import parse_write_options
from tests.support.certificates import Authority

if TYPE_CHECKING:
    from pathlib import Path

    from eddyline.core.auth.caller_channel import CallerAccess

pytestmark = pytest.mark.spark

PLACE = {"store": "127.0.0.1:7701", "topic": "routes"}
SECRET = "opaque-4711"


def shown_by(access: CallerAccess) -> str:
    """The secret that calls carry."""
    return dict(access.key.metadata()).get("authorization", "").removeprefix("Bearer ")


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    path = tmp_path / "a.key"
    path.write_text("of-a-file\n", encoding="utf-8")
    return str(path)


def test_names_are_taken_as_spark_spells_them_by_reads_and_writes(key_file: str) -> None:
    given = PLACE | {"keyfile": key_file, "TLS": "True", "tlsca": "ca.pem"}
    asked = AccessOptions(key_file=key_file, tls="true", tls_ca="ca.pem")
    assert parse_options(given).asked == parse_write_options(given).asked == asked
    assert asked_access(asked.as_options()) == asked


def test_options_go_before_the_environment_and_a_secret_before_a_file(key_file: str) -> None:
    environ = {"EDDYLINE_KEY": "of-the-environment"}
    assert shown_by(read_access(AccessOptions(), environ)) == "of-the-environment"
    assert shown_by(read_access(AccessOptions(), environ | {"EDDYLINE_KEY_FILE": key_file})) == "of-the-environment"
    assert shown_by(read_access(AccessOptions(key_file=key_file), environ)) == "of-a-file"
    assert shown_by(read_access(AccessOptions(key=SECRET), {"EDDYLINE_KEY_FILE": key_file})) == SECRET
    assert shown_by(read_access(AccessOptions(), {"EDDYLINE_KEY_FILE": key_file})) == "of-a-file"


def test_tls_is_used_where_any_of_its_options_sets_it(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "certificates")
    own, ca = authority.sign("spark"), str(authority.own.certificate)
    pair = {"tls_cert": str(own.certificate), "tls_key": str(own.key)}
    assert read_access(AccessOptions(), {}).tls is None
    for asked, environ in (
        (AccessOptions(tls="true"), {}),
        (AccessOptions(), {"EDDYLINE_TLS": "1"}),
        (AccessOptions(tls_ca=ca), {}),
        (AccessOptions(**pair), {}),
    ):
        assert read_access(asked, environ).tls is not None
    assert read_access(AccessOptions(tls="false"), {"EDDYLINE_TLS_CA": ca}).tls is None
    both = read_access(AccessOptions(tls_ca=ca, **pair), {}).tls
    assert both is not None
    assert both.certificate is not None
    assert (both.ca, both.certificate.key) == (authority.own.certificate.read_bytes(), own.key.read_bytes())


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"key": SECRET, "keyFile": "a.key"}, "option key: it does not go with keyFile"),
        ({"key": f"{SECRET} and more"}, "option key: the key is not one line"),
        ({"keyFile": "/nowhere/a.key"}, "option keyFile: /nowhere/a.key cannot be read"),
        ({"tls": "perhaps"}, "option tls: 'perhaps' is not one of"),
        ({"tls": "no", "tlsCa": "ca.pem"}, "option tlsCa: it does not go with tls=no"),
        ({"tlsCa": "/nowhere/ca.pem"}, "option tlsCa: /nowhere/ca.pem cannot be read"),
        ({"tlsCert": "a.pem"}, "option tlsCert: it needs tlsKey"),
        ({"tlsKey": "a.key"}, "option tlsKey: it needs tlsCert"),
        ({"tlsCert": "/nowhere/a.pem", "tlsKey": "a.key"}, "option tlsCert: /nowhere/a.pem cannot be read"),
        ({"keyfiles": "a.key"}, "option keyfiles: it is unknown"),
    ],
)
def test_faults_are_named_and_no_secret_is_printed(given: dict[str, str], named: str) -> None:
    with pytest.raises(EddylineError) as raised:
        with_access(parse_options(PLACE | given), {})
    assert named in raised.value.message
    assert SECRET not in raised.value.message


def test_a_wrong_file_of_the_environment_is_reported_with_its_variable() -> None:
    with pytest.raises(EddylineError, match="EDDYLINE_KEY_FILE of the driver's environment: /nowhere cannot be read"):
        read_access(AccessOptions(), {"EDDYLINE_KEY_FILE": "/nowhere"})


def test_options_travel_with_what_their_files_held_and_show_no_secret(tmp_path: Path) -> None:
    own = Authority(tmp_path / "certificates").sign("spark")
    given = PLACE | {"key": SECRET, "tlsCert": str(own.certificate), "tlsKey": str(own.key)}
    options = with_access(parse_options(given), {})
    key = own.key.read_text(encoding="utf-8")
    own.key.unlink()
    there = pickle.loads(pickle.dumps(options))
    assert shown_by(there.access) == SECRET
    assert there.access.tls.certificate.key.decode() == key
    for text in (repr(options), repr(options.access), repr(there.asked), str(parse_write_options(given))):
        assert SECRET not in text
        assert key.splitlines()[1] not in text


def test_unreachable_role_is_reported_with_its_dial_options(tmp_path: Path) -> None:
    ca = str(Authority(tmp_path / "certificates").own.certificate)
    for access, how in (
        (NO_ACCESS, "without TLS: options tls, tlsCa"),
        (read_access(AccessOptions(tls_ca=ca), {}), "with TLS, without a client certificate: options tlsCa"),
    ):
        with (
            Cluster(["127.0.0.1:1"], patience_s=0, access=access) as cluster,
            pytest.raises(EddylineError, match=how),
        ):
            cluster.get_topic("routes")
