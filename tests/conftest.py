"""Settings of the whole suite."""

from __future__ import annotations

from hypothesis import settings

# On shared cores a slow example says nothing: pytest-timeout bounds the test.
settings.register_profile("eddyline", deadline=None, print_blob=True)
settings.load_profile("eddyline")
