"""Settings of the whole suite, and the counts that its sweeps tell at the end."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING

from hypothesis import settings

if TYPE_CHECKING:
    import pytest

# On shared cores a slow example says nothing: pytest-timeout bounds the test. 60 examples of each property keep the
# suite within its three minutes, and they are the same ones each time: a suite that turns red tells of the change at hand.
# New examples are looked for by `make test-explore`.
EXPLORED = int(os.environ.get("EDDYLINE_TEST_EXAMPLES") or 0)
settings.register_profile(
    "eddyline", max_examples=EXPLORED or 60, derandomize=not EXPLORED, deadline=None, print_blob=True
)
settings.load_profile("eddyline")

# What serves calls, but where a test names it: in processes by their setting, in the test's own process by this default.
if WIRE := os.environ.get("EDDYLINE_TEST_WIRE"):
    from eddyline.core.server.server import make_server

    os.environ["EDDYLINE_COMMON_WIRE"] = WIRE
    defaults = make_server.__kwdefaults__
    assert defaults is not None
    defaults["wire"] = WIRE


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what tests counted (`record_property` with a number), summed over the parts that ran beside each other."""
    counts = Counter[str]()
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, value in getattr(report, "user_properties", ()):
                if isinstance(value, int) and getattr(report, "when", "") == "call":
                    counts[name] += value
    for name, count in counts.items():
        terminalreporter.write_line(f"{name}: {count}")
