"""P25's baseline: a role that imports first what roles import only when it is needed.

Run as `python -m tests.bench.baselines.eager_role ROLE`, with the role's settings.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Final

LATE: Final = {
    "store": ("pyarrow.compute", "pyarrow.ipc", "obstore", "eddyline.store.fsck.command", "eddyline.store.export"),
    "delivery": (),
    "ingest": ("nkeys",),
}
LATE_IN_EACH: Final = ("grpc_reflection.v1alpha.reflection",)


def main(role: str) -> int:
    """Run the role until a signal stops it; return its exit code."""
    for module in (*LATE[role], *LATE_IN_EACH):
        import_module(module)
    code: int = import_module(f"eddyline.{role}.__main__").main(os.environ)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
