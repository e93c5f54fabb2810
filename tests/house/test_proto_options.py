"""The options of proto files are there for generated code: each file has them, and no byte on the wire knows them.

`tests/golden/eddyline.v1.1.binpb` is the last image without options. Today's contract with its options masked must break
nothing of it by any rule of buf; this checks both the step to options and all later additions.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from google.protobuf import descriptor_pb2

ROOT: Final = Path(__file__).parents[2]
PROTO: Final = ROOT / "proto"
BUF: Final = Path(sys.executable).parent / "buf"
WITHOUT_OPTIONS: Final = ROOT / "tests" / "golden" / "eddyline.v1.1.binpb"
OPTIONS: Final = ("csharp_namespace", "go_package", "java_multiple_files", "java_outer_classname", "java_package")
"""The masked options: these and no others."""


def buf(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run buf where its configuration is."""
    return subprocess.run([BUF, *words], cwd=PROTO, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> descriptor_pb2.FileDescriptorSet:
    """Today's contract, compiled."""
    path = tmp_path_factory.mktemp("image") / "now.binpb"
    assert buf("build", "-o", path).returncode == 0
    return descriptor_pb2.FileDescriptorSet.FromString(path.read_bytes())


def judged(image: descriptor_pb2.FileDescriptorSet, folder: Path) -> str:
    """buf's findings for this image after the one without options."""
    path = folder / "masked.binpb"
    path.write_bytes(image.SerializeToString())
    verdict = buf("breaking", path, "--against", WITHOUT_OPTIONS, "--config", "buf.yaml")
    return verdict.stdout + verdict.stderr


def masked(image: descriptor_pb2.FileDescriptorSet) -> descriptor_pb2.FileDescriptorSet:
    """A copy without the options of generated code."""
    copy = descriptor_pb2.FileDescriptorSet()
    copy.CopyFrom(image)
    for file in copy.file:
        if file.name.startswith("eddyline/"):
            for option in OPTIONS:
                file.options.ClearField(option)
    return copy


def test_every_file_states_where_its_generated_code_goes(image: descriptor_pb2.FileDescriptorSet) -> None:
    files = [file for file in image.file if file.name.startswith("eddyline/")]
    assert len(files) == len(list(PROTO.rglob("*.proto")))
    for file in files:
        said = {option: getattr(file.options, option) for option in OPTIONS}
        assert said == {
            "csharp_namespace": "Eddyline.V1",
            "go_package": "eddyline/v1;eddylinev1",
            "java_multiple_files": True,
            "java_outer_classname": f"{Path(file.name).stem.capitalize()}Proto",
            "java_package": "eddyline.v1",
        }, file.name


def test_no_java_class_has_the_name_of_another(image: descriptor_pb2.FileDescriptorSet) -> None:
    """With a file a class, messages, enums and the files' own classes share one package."""
    names: list[str] = []
    for file in image.file:
        if file.name.startswith("eddyline/"):
            names += [file.options.java_outer_classname, *(f"{one.name}Grpc" for one in file.service)]
            names += [message.name for message in file.message_type]
            names += [enum.name for enum in file.enum_type]
    assert len({name.lower() for name in names}) == len(names), "a class is a file, and some disks know no case"


def test_options_aside_nothing_breaks_since_there_were_none(
    image: descriptor_pb2.FileDescriptorSet, tmp_path: Path
) -> None:
    assert judged(masked(image), tmp_path) == ""


def test_the_comparison_sees_what_it_must(image: descriptor_pb2.FileDescriptorSet, tmp_path: Path) -> None:
    assert 'File option "go_package" changed' in judged(image, tmp_path), "without the mask options are seen"
    broken = masked(image)
    (types,) = (file for file in broken.file if file.name == "eddyline/v1/types.proto")
    types.message_type[0].field[0].number = 999
    assert judged(broken, tmp_path) != "", "with it all else is"
