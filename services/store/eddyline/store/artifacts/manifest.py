"""Manifest of an artifact, and the pointer to the latest one: their bytes, verified. FORMAT.md has the grammar.

    line       JSON object: UTF-8, keys sorted, no spaces
    "\n"
    checksum   64 hex digits: BLAKE3 of line, without its newline
    "\n"

I1: a manifest with any changed byte is refused. I2: a path is relative, below `data/`, has two parts and no link. Unknown
keys are ignored, an unknown version is refused.
Threading: pure functions.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from dataclasses import MISSING, dataclass, fields
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from blake3 import blake3

from eddyline.core.errors import ArtifactInvalid
from eddyline.core.model.artifact import Artifact

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eddyline.core.model.source import SourceDefinition


MAGIC: Final = "eddyline-fold"
POINTER_MAGIC: Final = "eddyline-latest"
SCHEMA: Final = 1
MANIFEST_NAME: Final = "MANIFEST.json"
POINTER_NAME: Final = "latest"
DATA_NAME: Final = "data"
MANIFEST_BYTES_MAX: Final = 16 << 20
"""100 000 files of 64 MiB are 6 TiB; the entry of one is 130 bytes."""
_HASH: Final = re.compile(r"[0-9a-f]{64}")
_PATH: Final = re.compile(r"data/[0-9]{6,}\.sst")
_NAME: Final = re.compile(r"[0-9a-f]{16}-[0-9a-f]{16}-[0-9a-f]{16}")
_KIND: Final = "KV"
_U64: Final = 1 << 64


class ArtifactFile(NamedTuple):
    """One file: its path in the artifact, its size, and its BLAKE3 in hex."""

    path: str
    size: int
    blake3: str


@dataclass(frozen=True, slots=True)
class ArtifactManifest:
    """Content of an artifact. `source` holds a source's definition by field names, its `name` among them; None = there
    was none. `last_ts_ms` is no earlier than any entry's commit time."""

    topic: str
    epoch: int
    seq: int
    entry_count: int
    created_ms: int
    last_ts_ms: int
    store_id: str
    files: tuple[ArtifactFile, ...]
    source: Mapping[str, object] | None = None
    position: bytes = b""

    @property
    def file_bytes(self) -> int:
        return sum(file.size for file in self.files)


@dataclass(frozen=True, slots=True)
class Pointer:
    """Pointer to a topic's latest artifact; `manifest` is its manifest's BLAKE3 in hex."""

    name: str
    epoch: int
    seq: int
    store_id: str
    manifest: str


def topic_dir_name(topic: str) -> str:
    """Return the name of a topic's directory: topic names never reach a file system."""
    return blake3(topic.encode()).hexdigest()[:32]


def hash_of(encoded: bytes) -> str:
    """Return the BLAKE3 in hex."""
    return str(blake3(encoded).hexdigest())


def artifact_name(manifest: ArtifactManifest, encoded: bytes) -> str:
    """Return an artifact's name: sorted by its seq, and unique by its hash."""
    return f"{manifest.seq:016x}-{manifest.epoch:016x}-{hash_of(encoded)[:16]}"


def is_artifact_name(name: str) -> bool:
    """Whether the name has the form of an artifact's."""
    return _NAME.fullmatch(name) is not None


def seq_in_name(name: str) -> int:
    """Return the seq in an artifact's name."""
    return int(name[:16], 16)


def decode_named_manifest(name: str, encoded: bytes) -> ArtifactManifest:
    """Decode the manifest of the artifact of this name.

    Raises:
        ArtifactInvalid: it is damaged, or another artifact's.
    """
    manifest = decode_manifest(encoded, name)
    if artifact_name(manifest, encoded) != name:
        raise invalid(name, "its manifest is another artifact's")
    return manifest


def to_artifact(name: str, manifest: ArtifactManifest, *, is_latest: bool) -> Artifact:
    """Return the public description of an artifact."""
    return Artifact(
        name=name,
        topic=manifest.topic,
        epoch=manifest.epoch,
        fold_seq=manifest.seq,
        entry_count=manifest.entry_count,
        file_bytes=manifest.file_bytes,
        created_ms=manifest.created_ms,
        store_id=manifest.store_id,
        source=str(manifest.source["name"]) if manifest.source is not None else "",
        source_position=manifest.position,
        is_latest=is_latest,
    )


def pointer_to(manifest: ArtifactManifest, encoded: bytes) -> Pointer:
    """Return the pointer to an artifact."""
    return Pointer(artifact_name(manifest, encoded), manifest.epoch, manifest.seq, manifest.store_id, hash_of(encoded))


def is_older(manifest: ArtifactManifest, pointer: Pointer) -> bool:
    """Whether the artifact is older than the pointer's and must not replace it.

    A store counts epochs up, so a recreated topic is newer whatever its seq. Epochs of two stores do not compare, and a
    fold that moved from one to the other kept its seq.
    """
    if manifest.store_id == pointer.store_id:
        return (manifest.epoch, manifest.seq) < (pointer.epoch, pointer.seq)
    return manifest.seq < pointer.seq


def encode_manifest(manifest: ArtifactManifest) -> bytes:
    """Encode the content of `MANIFEST_NAME`."""
    body: dict[str, object] = {
        "created_ms": manifest.created_ms,
        "entry_count": manifest.entry_count,
        "epoch": manifest.epoch,
        "files": [file._asdict() for file in manifest.files],
        "kind": _KIND,
        "last_ts_ms": manifest.last_ts_ms,
        "magic": MAGIC,
        "schema": SCHEMA,
        "seq": manifest.seq,
        "store_id": manifest.store_id,
        "topic": manifest.topic,
    }
    if manifest.source is not None:
        body["source"] = dict(manifest.source)
        body["position"] = b64encode(manifest.position).decode()
    return _sealed(body)


def decode_manifest(encoded: bytes, name: str) -> ArtifactManifest:
    """Decode a manifest; errors name `name`.

    Raises:
        ArtifactInvalid: it is damaged, or of another version.
    """
    body = _unsealed(encoded, MAGIC, name)
    try:
        if body["kind"] != _KIND:
            raise ValueError(f"unknown kind {body['kind']}")
        files = tuple(ArtifactFile(file["path"], file["size"], file["blake3"]) for file in body["files"])
        _check_files(files)
        source = body.get("source")
        if source is not None and not isinstance(source["name"], str):
            raise ValueError("a source without a name")
        return ArtifactManifest(
            topic=_text(body["topic"]),
            epoch=_number(body["epoch"]),
            seq=_number(body["seq"], least=1),
            entry_count=_number(body["entry_count"]),
            created_ms=_number(body["created_ms"]),
            last_ts_ms=_number(body["last_ts_ms"]),
            store_id=_text(body["store_id"]),
            files=files,
            source=source,
            position=b64decode(body.get("position", ""), validate=True),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise invalid(name, f"its manifest is malformed: {error}") from error


def encode_pointer(pointer: Pointer) -> bytes:
    """Encode the content of `POINTER_NAME`."""
    return _sealed(
        {
            "epoch": pointer.epoch,
            "magic": POINTER_MAGIC,
            "manifest": pointer.manifest,
            "name": pointer.name,
            "schema": SCHEMA,
            "seq": pointer.seq,
            "store_id": pointer.store_id,
        }
    )


def decode_pointer(encoded: bytes, topic: str) -> Pointer:
    """Decode a pointer; errors name `topic`.

    Raises:
        ArtifactInvalid: as of a manifest.
    """
    name = f"the pointer of {topic}"
    body = _unsealed(encoded, POINTER_MAGIC, name)
    try:
        if not is_artifact_name(body["name"]) or not _HASH.fullmatch(body["manifest"]):
            raise ValueError("it names no valid artifact")
        return Pointer(
            body["name"],
            _number(body["epoch"]),
            _number(body["seq"]),
            _text(body["store_id"]),
            body["manifest"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise invalid(name, f"it is malformed: {error}") from error


def invalid(name: str, what: str) -> ArtifactInvalid:
    """Return the error about an artifact."""
    return ArtifactInvalid(f"artifact {name}: {what}", artifact=name)


def _check_files(files: tuple[ArtifactFile, ...]) -> None:
    if len({file.path for file in files}) != len(files):
        raise ValueError("a file is listed twice")
    for file in files:
        if not _PATH.fullmatch(file.path):
            raise ValueError(f"{file.path!r} is not the path of a table")
        if not _HASH.fullmatch(file.blake3):
            raise ValueError(f"{file.path} has no valid hash")
        _number(file.size, least=1)


def _sealed(body: Mapping[str, object]) -> bytes:
    line = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    return line + b"\n" + hash_of(line).encode() + b"\n"


def _unsealed(encoded: bytes, magic: str, name: str) -> dict[str, Any]:
    line, _, checksum = encoded.partition(b"\n")
    if checksum != hash_of(line).encode() + b"\n":
        raise invalid(name, "it fails its checksum")
    try:
        body = json.loads(line)
        body_magic, schema = body["magic"], body["schema"]
    except (ValueError, KeyError, TypeError) as error:
        raise invalid(name, f"it has no magic or schema: {error}") from error
    if body_magic != magic:
        raise invalid(name, f"its magic is not {magic}")
    if schema != SCHEMA:
        raise invalid(name, f"it has schema {schema}, this version reads {SCHEMA}")
    return dict(body)


def _number(value: object, *, least: int = 0) -> int:
    if type(value) is not int or not least <= value < _U64:
        raise ValueError(f"{value!r} is not a number of at least {least}")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a string")
    return value


_OWN: Final = ("name", "topic")
"""Fields in which the same source may differ between two stores."""


def source_body(definition: SourceDefinition) -> dict[str, object]:
    """Return a source's definition for a manifest: all fields but its topic, which the manifest has."""
    return {
        field.name: _plain(getattr(definition, field.name)) for field in fields(definition) if field.name != "topic"
    }


def is_same_source(body: Mapping[str, object], definition: SourceDefinition) -> bool:
    """Whether both copy the same stream or bucket; a missing field has its default."""
    for field in fields(definition):
        if field.name in _OWN:
            continue
        default = MISSING if field.default is MISSING else _plain(field.default)
        if body.get(field.name, default) != _plain(getattr(definition, field.name)):
            return False
    return True


def _plain(value: object) -> object:
    """Convert a value to the form that JSON decodes to."""
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value
