"""Prints a stream's checkpoint: its positions, its missing files, and how to resume.

    python -m eddyline.spark.checkpoint /data/checkpoints/routes

Spark ends a query whose files are not complete before it asks a source anything, with a message that names a batch and none
of its positions. This one reads the files as they are (`offsets/<batch>`, `commits/<batch>`), and says which batch is
missing, up to where each topic was read, and the `startingSeq` with which a new checkpoint goes on there. It changes
nothing.
Exit status: 0 complete, 1 something is missing, 2 no checkpoint of ours.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyarrow import fs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_VERSION: Final = "v1"
_FILE_BYTES_MAX: Final = 64 << 20


class NoCheckpoint(Exception):
    """There is no checkpoint, or none of a stream of ours."""


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """A checkpoint. `planned` and `committed` are batches that have a file; `places` are those of the last committed batch
    that still has one, else those that the first batch was planned with; empty = unknown.
    """

    planned: tuple[int, ...]
    committed: tuple[int, ...]
    missing: tuple[int, ...]
    places: Mapping[str, int]
    places_batch: int | None

    @property
    def starting_seq(self) -> str:
        """The option with which a new checkpoint goes on behind `places`."""
        return json.dumps({topic: seq + 1 for topic, seq in self.places.items()})

    def words(self) -> list[str]:
        """It, for people."""
        last = (
            f"batch {self.committed[-1]} is the last that was completed" if self.committed else "no batch was completed"
        )
        told = [f"{last}; {len(self.planned)} of its offsets files are here"]
        if self.missing:
            names = ", ".join(f"offsets/{batch}" for batch in self.missing)
            told.append(
                f"missing: {names}. Spark does not start a query without it: restore it from a copy, or continue"
                " with a new checkpoint:"
            )
        if self.places_batch is not None:
            told += [f"  topic {topic}: read up to seq {seq}" for topic, seq in sorted(self.places.items())]
            told.append(
                f"to continue after batch {self.places_batch}, use a new, empty checkpoint and the option"
                f" startingSeq={self.starting_seq}"
            )
            if self.committed and self.places_batch < self.committed[-1]:
                told.append(
                    f"the records of batches {self.places_batch + 1} to {self.committed[-1]} are then read again"
                )
        return told


def read_checkpoint(location: str) -> CheckpointState:
    """Read a checkpoint's files, of a path or a URI that Arrow's file systems know.

    Raises:
        NoCheckpoint: there is none, or its offsets are not of this source.
    """
    system, root = fs.FileSystem.from_uri(location) if "://" in location else (fs.LocalFileSystem(), location)
    planned, committed = _batches(system, f"{root}/offsets"), _batches(system, f"{root}/commits")
    if not planned and not committed:
        raise NoCheckpoint(f"{location} has no offsets and no commits: it is not a checkpoint, or it is empty")
    last = max((*planned, *committed))
    # Spark needs the last two, and keeps a hundred.
    wanted = range(max(0, last - 1), last + 1)
    missing = tuple(batch for batch in wanted if batch not in planned)
    done = [batch for batch in planned if batch in committed]
    told = done[-1] if done else None
    places = {} if told is None else _places(system, f"{root}/offsets/{told}")
    return CheckpointState(planned, committed, missing, places, told)


def _batches(system: fs.FileSystem, folder: str) -> tuple[int, ...]:
    found = system.get_file_info(fs.FileSelector(folder, allow_not_found=True))
    return tuple(sorted(int(file.base_name) for file in found if file.base_name.isdecimal()))


def _places(system: fs.FileSystem, path: str) -> dict[str, int]:
    with system.open_input_stream(path) as file:
        lines = file.read(_FILE_BYTES_MAX).decode().splitlines()
    if not lines or lines[0] != _VERSION:
        raise NoCheckpoint(f"{path} is not of version {_VERSION}")
    places: dict[str, int] = {}
    for line in lines[2:]:
        try:
            offset = json.loads(line)
            places |= {topic: int(place["seq"]) for topic, place in offset.items()}
        except (ValueError, TypeError, KeyError, AttributeError):
            continue  # of another source of the same query
    if not places:
        raise NoCheckpoint(f"{path} has no topic of this source")
    return places


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m eddyline.spark.checkpoint", description=__doc__)
    parser.add_argument("location", help="a checkpoint's folder, or its URI")
    try:
        state = read_checkpoint(parser.parse_args(arguments).location)
    except NoCheckpoint as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write("\n".join(state.words()) + "\n")
    return 1 if state.missing else 0


if __name__ == "__main__":
    sys.exit(main())
