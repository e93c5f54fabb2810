"""The contract's version moves with the contract: one minor above the frozen image's where anything was added since."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Final

from google.protobuf import descriptor_pb2

from eddyline.core.server.cluster_service import CONTRACT_VERSION

ROOT: Final = Path(__file__).parents[2]
GOLDEN: Final = ROOT / "tests" / "golden"


def bare(file: descriptor_pb2.FileDescriptorProto) -> bytes:
    """A file without its comments, and without what compilers add to the one form and not to the other."""
    plain = descriptor_pb2.FileDescriptorProto()
    plain.CopyFrom(file)
    plain.DiscardUnknownFields()
    plain.ClearField("source_code_info")
    messages = list(plain.message_type)
    for message in messages:
        messages += message.nested_type
        for one in message.field:
            one.ClearField("json_name")
    return plain.SerializeToString(deterministic=True)


def frozen() -> dict[str, bytes]:
    """The image's files by name."""
    image = descriptor_pb2.FileDescriptorSet.FromString((GOLDEN / "eddyline.v1.binpb").read_bytes())
    return {file.name: bare(file) for file in image.file if file.name.startswith("eddyline/")}


def current() -> dict[str, bytes]:
    """Those of `proto/`, as generated."""
    files: dict[str, bytes] = {}
    for path in sorted((ROOT / "proto" / "eddyline" / "v1").glob("*.proto")):
        made = descriptor_pb2.FileDescriptorProto()
        import_module(f"eddyline.v1.{path.stem}_pb2").DESCRIPTOR.CopyToProto(made)
        files[made.name] = bare(made)
    return files


def minor(version: str) -> int:
    major, _, number = version.strip().partition(".")
    assert major == "v1"
    return int(number)


def test_what_is_added_to_the_contract_raises_its_minor_once() -> None:
    was = minor((GOLDEN / "contract_version.txt").read_text())
    due = was if current() == frozen() else was + 1
    assert minor(CONTRACT_VERSION) == due, "raise CONTRACT_VERSION with the first addition since `make proto-freeze`"
