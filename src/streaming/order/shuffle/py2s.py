"""`py2s`: the rows of every whole shard are permuted, then shuffled like `py1s`.

So a shard that is cut between canonical nodes gives each of them random rows, not neighbouring ones. Runs come one
after the other, as under `py1s`; `RowReader` finds the row that a place of a run stands for.
"""

from __future__ import annotations

from streaming.order.shuffle.py1s import make

__all__ = ["make"]
