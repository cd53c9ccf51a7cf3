"""Settings of all tests."""

from __future__ import annotations

import gc
import os

from hypothesis import HealthCheck, settings

# No test depends on how fast the machine is.
settings.register_profile("unhurried", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

# A forked child inherits what hundreds of tests left, but none of the threads that used it. Children were seen to hang
# while they collected it. What is frozen before a fork is never collected in the child.
os.register_at_fork(before=gc.freeze, after_in_parent=gc.unfreeze)
