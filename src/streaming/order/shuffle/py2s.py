"""`py2s`: the rows of every whole shard permuted, then as `py1s`.

A shard that is cut between canonical nodes so gives each of them random rows, not neighbouring ones. Runs come one
after the other as in `py1s`; which row a place of a run stands for is told by `rows.RowReader`.
"""

from __future__ import annotations

from streaming.order.shuffle.py1s import lane

__all__ = ["lane"]
