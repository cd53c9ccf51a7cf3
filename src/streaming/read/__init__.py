"""From an epoch's order to samples: which are read when, from which files, and what was waited for.

`epoch` reads one worker's share, `shards` finds samples by number, `telemetry` counts, `streams` say where everything
is, and `shared` is what a rank process has in common with its loader workers.
"""
