"""Manifests and pointers: their bytes are frozen, and any other bytes are refused."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from eddyline.core.errors import ArtifactInvalid
from eddyline.store.artifacts.manifest import (
    ArtifactFile,
    ArtifactManifest,
    artifact_name,
    decode_manifest,
    decode_named_manifest,
    decode_pointer,
    encode_manifest,
    encode_pointer,
    hash_of,
    is_older,
    pointer_to,
    topic_dir_name,
)
from tests.support.golden import golden

MANIFEST = ArtifactManifest(
    topic="prices",
    epoch=7,
    seq=6,
    entry_count=3,
    created_ms=1_700_000_000_000,
    last_ts_ms=1_699_999_999_000,
    store_id="18bcfe56800-boot-1",
    files=(ArtifactFile("data/000000.sst", 1234, "ab" * 32),),
    source={"bucket": "prices", "name": "nats"},
    position=b"\x01\x02",
)


def test_encoded_manifest_and_pointer_equal_the_golden_files() -> None:
    encoded = golden("artifact-1.json")
    assert encode_manifest(MANIFEST) == encoded
    assert decode_manifest(encoded, "it") == MANIFEST
    pointer = golden("artifact-latest-1.json")
    assert encode_pointer(pointer_to(MANIFEST, encoded)) == pointer
    assert decode_pointer(pointer, "prices") == pointer_to(MANIFEST, encoded)


def test_every_changed_byte_is_refused() -> None:
    for name, decode in (("artifact-1.json", decode_manifest), ("artifact-latest-1.json", decode_pointer)):
        encoded = golden(name)
        for offset in range(len(encoded)):
            for flip in (0x01, 0x20, 0x80):
                damaged = encoded[:offset] + bytes((encoded[offset] ^ flip,)) + encoded[offset + 1 :]
                with pytest.raises(ArtifactInvalid):
                    decode(damaged, "it")
            with pytest.raises(ArtifactInvalid):
                decode(encoded[:offset], "it")


def _resealed(**changes: object) -> bytes:
    body = {**json.loads(golden("artifact-1.json").partition(b"\n")[0]), **changes}
    line = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    return line + b"\n" + hash_of(line).encode() + b"\n"


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "data/../000000.sst",
        "../data/000000.sst",
        "data\\000000.sst",
        "data/000000.sst/x",
        "000000.sst",
        "",
    ],
)
def test_path_outside_the_artifact_is_refused(path: str) -> None:
    with pytest.raises(ArtifactInvalid):
        decode_manifest(_resealed(files=[{"path": path, "size": 1, "blake3": "ab" * 32}]), "it")


@pytest.mark.parametrize(
    "change",
    [
        {"schema": 2},
        {"magic": "another"},
        {"kind": "LOG"},
        {"seq": 0},
        {"seq": -1},
        {"seq": 1 << 64},
        {"seq": "6"},
        {"seq": True},
        {"topic": 5},
        {"files": "data/000000.sst"},
        {"files": [{"path": "data/000000.sst", "size": 1, "blake3": "AB" * 32}]},
        {"files": [{"path": "data/000000.sst", "size": 1, "blake3": "ab" * 32}] * 2},
        {"position": "?"},
        {"source": {}},
    ],
)
def test_impossible_value_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ArtifactInvalid):
        decode_manifest(_resealed(**change), "it")


def test_unknown_keys_are_ignored() -> None:
    assert decode_manifest(_resealed(later="x"), "it") == MANIFEST


def test_manifest_of_another_artifact_is_refused() -> None:
    other = encode_manifest(replace(MANIFEST, entry_count=4))
    with pytest.raises(ArtifactInvalid):
        decode_named_manifest(artifact_name(MANIFEST, encode_manifest(MANIFEST)), other)


def test_directory_names_do_not_contain_topic_names() -> None:
    assert topic_dir_name("../../x").isalnum()
    assert topic_dir_name("a") != topic_dir_name("A")


@pytest.mark.parametrize(
    ("store_id", "epoch", "seq", "older"),
    [
        ("18bcfe56800-boot-1", 7, 6, False),
        ("18bcfe56800-boot-1", 7, 5, True),
        ("18bcfe56800-boot-1", 8, 1, False),
        ("18bcfe56800-boot-1", 6, 9, True),
        ("another", 1, 6, False),
        ("another", 99, 5, True),
    ],
)
def test_older_artifact_is_determined_by_epoch_and_seq(store_id: str, epoch: int, seq: int, older: bool) -> None:
    pointer = pointer_to(MANIFEST, encode_manifest(MANIFEST))
    assert is_older(replace(MANIFEST, store_id=store_id, epoch=epoch, seq=seq), pointer) is older
