"""The chart's schema knows what the roles take: every setting with its type and bounds, and every field of the sources file.

Written by `python -m tests.helm.test_chart_settings` from the roles' own settings.
"""

from __future__ import annotations

import dataclasses
import json
import re
from typing import TYPE_CHECKING, Final, get_type_hints

import pytest
import yaml

from eddyline.core.runtime.settings import WIRES, CommonSettings, SettingsError
from eddyline.delivery.config import DeliverySettings
from eddyline.ingest.config import IngestSettings
from eddyline.ingest.sources.sources_file import FIELDS, LISTS, parse_sources
from eddyline.store.config import COMPRESSIONS, FOLD_PROFILES, WAL_FILE_BYTES_MIN, StoreSettings
from tests.support.kubernetes.helm import CHART, PACKED, HelmFailed, Manifest, environ, of_kind, pods, rendered

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SCHEMA: Final = CHART / "values.schema.json"
ROLES: Final[dict[str, type[CommonSettings | StoreSettings | IngestSettings | DeliverySettings]]] = {
    "common": CommonSettings,
    "store": StoreSettings,
    "ingest": IngestSettings,
    "delivery": DeliverySettings,
}
OF_THE_CHART: Final = {
    "common": {
        *(f"{role}_addresses" for role in ("store", "ingest", "delivery")),
        *(f"{role}_advertised_addresses" for role in ("store", "ingest", "delivery")),
        "cluster_id",
        "log_level",
        "log_format",
        "metrics_key_file",
        "otlp_url",
        "trace_ratio",
        "keys_file",
        "key_file",
        "tls_cert",
        "tls_key",
        "tls_ca",
        "tls_client_ca",
    },
    "store": {"listen", "metrics_listen", "shard_index", "data_dir", "memory_bytes"},
    "ingest": {
        "listen",
        "metrics_listen",
        "nats_url",
        "nats_domain",
        "nats_creds",
        "nats_creds_file",
        "nats_nkey_file",
        "nats_inbox_prefix",
        "nats_tls_ca",
        "nats_tls_cert",
        "nats_tls_key",
        "nats_tls_first",
        "sources_file",
        "holder",
    },
    "delivery": {"listen", "metrics_listen"},
}
"""By the part of the values that has the settings: what has a value of its own, or is the chart's to say. Set twice it would
be a matter of luck which one holds."""
CHOICES: Final = {"compression": COMPRESSIONS, "fold_profile": FOLD_PROFILES, "wire": WIRES}
WITH: Final = {"unsegmented_bytes_max": {"wal_file_bytes": WAL_FILE_BYTES_MIN}}
"""Values of other settings that allow a setting's whole range."""
SIZE: Final = "^[0-9]+([.][0-9]+)?(k|M|G|T|Ki|Mi|Gi|Ti)?$"
NUMBER_MAX: Final = (1 << 63) - 1


def of_schema(role: str) -> Manifest:
    loaded: Manifest = json.loads(SCHEMA.read_text(encoding="utf-8"))
    found: Manifest = loaded["properties"][role]["properties"]["settings"]
    return found


def of_role(role: str) -> Manifest:
    """The schema of a role's settings, derived from the settings themselves."""
    hints = get_type_hints(ROLES[role])
    fields = [field for field in dataclasses.fields(ROLES[role]) if field.name not in OF_THE_CHART[role]]
    properties = {field.name.upper(): _schema(role, field, hints[field.name]) for field in fields}
    return {"type": "object", "additionalProperties": False, "properties": dict(sorted(properties.items()))}


def _schema(role: str, field: dataclasses.Field[object], wanted: object) -> Manifest:
    if field.name in CHOICES:
        return {"enum": list(CHOICES[field.name])}
    if wanted is bool:
        return {"type": ["boolean", "string"], "pattern": "^(true|false)$"}
    if wanted is not int:
        return {"type": "string"}
    assert isinstance(field.default, int)
    pattern = SIZE if "_bytes" in field.name else "^[0-9]+$"
    low, high = _edge(role, field, -1), _edge(role, field, 1)
    made: Manifest = {"type": ["integer", "string"], "minimum": low, "maximum": high, "pattern": pattern}
    if low > 0 and _takes(role, field.name, 0):
        made |= {"minimum": 0, "not": {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": low}}
    return made


def _edge(role: str, field: dataclasses.Field[object], sign: int) -> int:
    """The last number that is taken, from the default on down (-1) or up."""
    assert isinstance(field.default, int)
    taken, refused = field.default, sign * (NUMBER_MAX + 1)
    while abs(refused - taken) > 1:
        between = (taken + refused) // 2
        taken, refused = (between, refused) if _takes(role, field.name, between) else (taken, between)
    return taken


def _takes(role: str, name: str, value: int) -> bool:
    make: Callable[..., object] = ROLES[role]
    try:
        make(**{**WITH.get(name, {}), name: value})
    except SettingsError:
        return False
    return True


@pytest.mark.parametrize("role", ROLES)
def test_schema_knows_every_setting_with_its_type_and_bounds(role: str) -> None:
    assert of_schema(role) == of_role(role), "python -m tests.helm.test_chart_settings writes it"


def test_default_of_every_setting_fits_the_schema(tmp_path: Path) -> None:
    values = {
        role: {
            "settings": {
                field.name.upper(): field.default
                for field in dataclasses.fields(ROLES[role])
                if field.name not in OF_THE_CHART[role]
            }
        }
        for role in ROLES
    }
    path = tmp_path / "values.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    for component, pod in pods(rendered(values=[path])):
        for role in ("common", component):
            assert {f"EDDYLINE_{role.upper()}_{name}" for name in values[role]["settings"]} <= set(environ(pod))


@pytest.mark.parametrize("role", ROLES)
def test_setting_of_the_charts_own_is_set_by_it_or_by_values(role: str) -> None:
    prefix = f"EDDYLINE_{role.upper()}_"
    found = {
        name.removeprefix(prefix).lower()
        for values in ("everything", "monitored")
        for component, pod in pods(rendered(values=[CHART / f"ci/{values}.yaml"]))
        if component == role or (role == "common" and component in ROLES)
        for name in environ(pod)
    }
    advertised = {name for name in OF_THE_CHART[role] if "advertised" in name}
    assert OF_THE_CHART[role] - advertised - {"nats_creds"} <= found


@pytest.mark.parametrize(
    "value",
    [
        "store.settings.CHEKPOINT_BYTES=1Gi",
        "store.settings.MEMORY_BYTES=4Gi",
        "store.settings.WAL_SHARDS=17",
        "store.settings.COMPRESSION=gzip",
        "store.settings.CHECKPOINT_BYTES=many",
        "common.settings.KEY_WATCHES_MAX=-1",
        "common.settings.LOG_LEVEL=DEBUG",
        "common.settings.WIRE=http3",
        "ingest.settings.NATS_URL=nats://other:4222",
        "ingest.settings.VERIFY_INTERVAL_MS=10",
        "ingest.settings.VERIFY_REPAIR=maybe",
        "delivery.settings.STREAM_AGE_MS_MAX=1",
        "delivery.settings.WATCHES_MAX=20000",
    ],
)
def test_setting_that_no_role_takes_is_refused_by_its_name(value: str) -> None:
    name = value.partition("=")[0].rpartition(".")[2]
    with pytest.raises(HelmFailed, match=name):
        rendered(sets=[value])


@pytest.mark.parametrize("major", PACKED)
@pytest.mark.parametrize(
    ("value", "size"),
    [("4Gi", 4 << 30), ("4294967296", 4 << 30), ("1.5Gi", 3 << 29), ("2000M", 2_000_000_000)],
)
def test_memory_is_given_as_kubernetes_writes_it(major: int, value: str, size: int) -> None:
    made = rendered(major, sets=[f"store.memoryBytes={value}", "store.resources.limits.memory=8Gi"])
    (variables,) = [environ(pod) for role, pod in pods(made) if role == "store"]
    assert variables["EDDYLINE_STORE_MEMORY_BYTES"] == str(size)


def test_sizes_of_settings_are_given_so_too() -> None:
    (variables,) = [
        environ(pod) for role, pod in pods(rendered(sets=["store.settings.CHECKPOINT_BYTES=1Gi"])) if role == "store"
    ]
    assert variables["EDDYLINE_STORE_CHECKPOINT_BYTES"] == "1Gi"


SOURCES: Final[list[Manifest]] = [
    {"name": "orders", "bucket": "orders", "topic": "orders", "key_prefixes": ['a"b', "c"], "on_expired": "stop"},
    {"name": "audit", "stream": "AUDIT", "topic": "audit", "subjects": ["audit.>"], "dead_letter_topic": "letters"},
]
WRONG_SOURCES: Final[list[tuple[Manifest, str]]] = [
    ({"name": "a", "topic": "a", "bucket": "b", "colour": "red"}, "colour"),
    ({"name": "a", "topic": "a", "bucket": 5}, "bucket"),
    ({"name": "a", "topic": "a"}, "bucket"),
    ({"name": "a", "topic": "a", "bucket": "b", "stream": "s"}, "stream"),
    ({"topic": "a", "bucket": "b"}, "name"),
    ({"name": "a", "topic": "a", "stream": "s", "key_prefixes": ["x"]}, "key_prefixes"),
    ({"name": "a", "topic": "a", "bucket": "b", "dead_letter_topic": "a"}, "dead_letter_topic"),
    ({"name": "a", "topic": "a", "bucket": "b", "on_expired": "forget"}, "on_expired"),
    ({"name": "a", "topic": "a", "bucket": "b", "key_prefixes": "x"}, "key_prefixes"),
]


def as_toml(source: Manifest) -> str:
    """A table, by JSON's texts, numbers and lists, which TOML writes alike."""
    return "[[source]]\n" + "".join(f"{field} = {json.dumps(value)}\n" for field, value in source.items())


def values_file(folder: Path, sources: object) -> Path:
    path = folder / "values.yaml"
    path.write_text(yaml.safe_dump({"ingest": {"sources": sources}}), encoding="utf-8")
    return path


@pytest.mark.parametrize("major", PACKED)
@pytest.mark.parametrize("form", [list, lambda sources: "".join(map(as_toml, sources))], ids=["list", "text"])
def test_sources_are_a_list_or_the_files_text(tmp_path: Path, major: int, form: Callable[[object], object]) -> None:
    made = rendered(major, values=[values_file(tmp_path, form(SOURCES))])
    (found,) = [one for one in of_kind(made, "ConfigMap") if "sources.toml" in one["data"]]
    expected = parse_sources("".join(map(as_toml, SOURCES)), "here")
    assert parse_sources(found["data"]["sources.toml"], "chart") == expected


@pytest.mark.parametrize(("source", "named"), WRONG_SOURCES)
@pytest.mark.parametrize("form", ["list", "text"])
def test_source_that_ingest_would_refuse_is_refused_by_what_is_wrong(
    tmp_path: Path, form: str, source: Manifest, named: str
) -> None:
    with pytest.raises(SettingsError):
        parse_sources(as_toml(source), "here")
    with pytest.raises(HelmFailed, match=named):
        rendered(values=[values_file(tmp_path, [source] if form == "list" else as_toml(source))])


@pytest.mark.parametrize(
    ("sources", "words"),
    [
        ("[[source", "not TOML"),
        ("source = 5", r"\[\[source\]\]"),
        ("[sauce]\nname = 'a'", "unknown sauce"),
        ([SOURCES[0], SOURCES[1] | {"name": "orders"}], "name orders to more than one"),
        ([SOURCES[0], SOURCES[1] | {"topic": "orders"}], "topic orders to more than one"),
    ],
)
def test_sources_that_are_no_file_or_contradict_each_other_are_refused(
    tmp_path: Path, sources: object, words: str
) -> None:
    with pytest.raises(HelmFailed, match=words):
        rendered(values=[values_file(tmp_path, sources)])


def test_schema_and_templates_know_the_fields_of_the_sources_file() -> None:
    loaded = json.loads(SCHEMA.read_text(encoding="utf-8"))
    items = loaded["properties"]["ingest"]["properties"]["sources"]["items"]
    assert set(items["properties"]) == {*FIELDS, *LISTS}
    helpers = (CHART / "templates/_helpers.tpl").read_text(encoding="utf-8")
    known = [set(re.findall(r'"(\w+)"', line)) for line in re.findall(r"\$(?:texts|lists) := list (.*)", helpers)]
    assert known == [set(FIELDS), set(LISTS)]


if __name__ == "__main__":
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    for name in ROLES:
        schema["properties"][name]["properties"]["settings"] = of_role(name)
    SCHEMA.write_text(json.dumps(schema, indent=1) + "\n", encoding="utf-8")
