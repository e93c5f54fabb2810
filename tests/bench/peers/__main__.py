"""`make peers`: print each program that the peer rows use, or the way to get it."""

from __future__ import annotations

import sys

from tests.bench.peers.servers import Absent, program

PROGRAMS = ("peerload", "jetstream", "redis", "etcd", "topics")


def main() -> int:
    """Exit status 0, whatever is absent: a row without a peer prints `skipped`."""
    for name in PROGRAMS:
        try:
            print(f"{name}: {program(name)}")
        except Absent as absent:
            print(absent)
    return 0


if __name__ == "__main__":
    sys.exit(main())
