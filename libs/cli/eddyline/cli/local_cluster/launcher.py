"""Becomes another program that dies with its parent: `python launcher.py PARENT_PID PROGRAM ARGUMENT…`.

PR_SET_PDEATHSIG survives execve and needs no code in the program. SIGKILL, because it must be certain: every part is made
to survive it. Rejected: a hook between fork and exec, which runs Python code in a copy of a threaded process.
Standard library only, and few modules of it: this runs before each start.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Tie this process to its parent, then become the program."""
    parent, program = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("the supervisor is gone")  # it died before the tie was made
    os.execv(program[0], program)


if __name__ == "__main__":
    main()
