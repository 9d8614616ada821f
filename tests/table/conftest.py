"""Settings of the data tests."""

from __future__ import annotations

from hypothesis import settings

# A shared machine may stall for longer than hypothesis' 200 ms; time is not what is tested.
settings.register_profile("data", deadline=None)
settings.load_profile("data")
