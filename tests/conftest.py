"""Settings of the whole suite."""

from __future__ import annotations

from hypothesis import settings

# On shared cores a slow example says nothing: pytest-timeout bounds the test. 60 examples of each property keep the
# suite within its three minutes.
settings.register_profile("eddyline", max_examples=60, deadline=None, print_blob=True)
settings.load_profile("eddyline")
