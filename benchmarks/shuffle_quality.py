"""How well the defaults shuffle, and what that costs: three shapes of data on 1 to 100 nodes.

    python benchmarks/shuffle_quality.py [--plot docs/shuffle.svg]

Nodes have 8 ranks with batches of 32. The columns, of a markdown table for each shape:

- shards in a batch: distinct shards in a global batch, the mean of batches in the middle 5 % of the epoch; beside it
  what a full shuffle would have;
- last 5 %: the same at the end of the epoch, as a ratio to the middle: not below 1 but for chance;
- shards in use: of which a node is in the middle at once, on average and at most;
- downloads a shard: over all nodes, as `explain` says; and counted sample by sample over the whole epoch, the last
  batch and padding included, where the epoch is short enough for that.

The plot needs matplotlib, which is no dependency.
"""

from __future__ import annotations

import argparse
import importlib
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from streaming.order import Catalog, EpochOrder, EpochPlan, Explanation, OrderSpec, Topology, explain
from streaming.order.nodes.assignment import all_canonical_nodes
from streaming.order.nodes.partition import node_share
from streaming.order.report.quality import shuffle_score
from streaming.order.report.shards_in_use import fractions_in_use

RANKS_PER_NODE: Final = 8
BATCH_SIZE: Final = 32
NODES: Final = (1, 2, 3, 8, 64, 100)
N_BATCHES: Final = 6
LONGEST_COUNTED: Final = 2_000_000


@dataclass(frozen=True)
class Shape:
    """A data set of equal shards."""

    name: str
    n_shards: int
    rows: int

    def order(self, **settings: Any) -> EpochOrder:
        """Epoch 0, with default settings but for those given."""
        catalog = Catalog(np.full(self.n_shards, self.rows), np.array([self.n_shards]))
        return EpochOrder(OrderSpec(shuffle=True, **settings), catalog, 0)


SHAPES: Final = (
    Shape("images: 2,000 shards × 600", 2_000, 600),
    Shape("tokens: 100,000 shards × 8,000", 100_000, 8_000),
    Shape("small: 20 shards × 500", 20, 500),
)


def distinct_shards(order: EpochOrder, shape: Shape, n_positions: int, between: tuple[float, float]) -> float:
    """Distinct shards in so many consecutive positions: the mean over places between two fractions of the epoch."""
    n_positions = min(n_positions, order.n_samples)
    first, last = (int(fraction * order.n_samples) for fraction in between)
    last = max(0, min(last, order.n_samples) - n_positions)
    reader, found = order.reader(), []
    for begin in np.linspace(min(first, last), last, N_BATCHES).astype(np.int64).tolist():
        ids = reader.ids(np.arange(begin, begin + n_positions, dtype=np.int64))
        found.append(len(np.unique(ids // shape.rows)))
    return float(np.mean(found))


def by_chance(shape: Shape, n_positions: int) -> float:
    """The same for a full shuffle, on average."""
    n = shape.n_shards * shape.rows
    missed = np.log1p(
        -min(n_positions, n) / (n - np.arange(shape.rows)), where=n_positions < n, out=np.full(shape.rows, -9e9)
    )
    return shape.n_shards * (1 - float(np.exp(missed.sum())))


def counted_downloads(order: EpochOrder, shape: Shape, topology: Topology) -> float:
    """Downloads of a shard over all nodes, by looking at every sample that every node gets."""
    plan = EpochPlan(order, topology, BATCH_SIZE)
    ids, pairs = order.take(0, order.n_samples), []
    for begin in range(0, plan.stop, plan.global_batch):
        positions = plan.source(np.arange(begin, min(begin + plan.global_batch, plan.stop), dtype=np.int64))
        positions = positions[np.argsort(order.locate(positions)[0], kind="stable")]
        ends = [node_share(len(positions), topology, node)[1] for node in range(topology.n_nodes)]
        nodes = np.repeat(np.arange(topology.n_nodes), np.diff(ends, prepend=0))
        pairs.append(np.unique(nodes * shape.n_shards + ids[positions] // shape.rows))
    return len(np.unique(np.concatenate(pairs))) / shape.n_shards


def row(order: EpochOrder, shape: Shape, n_nodes: int) -> str:
    """A line of the table."""
    topology = Topology(n_nodes * RANKS_PER_NODE, RANKS_PER_NODE)
    size = BATCH_SIZE * topology.n_ranks
    middle = distinct_shards(order, shape, size, (0.475, 0.525))
    end = distinct_shards(order, shape, size, (0.95, 1.0))
    found: Explanation = explain(order, topology, BATCH_SIZE)
    counted = f"{counted_downloads(order, shape, topology):.2f}" if order.n_samples <= LONGEST_COUNTED else "–"
    return (
        f"| {n_nodes} | {size:,} | {middle:,.0f} ({by_chance(shape, size):,.0f}) | {end / middle:.2f} | "
        f"{found.shards_in_use:,.0f} ({found.most_shards_in_use:,}) | {found.downloads_per_shard:.2f} | {counted} |"
    )


def plot(path: str) -> None:
    """The score over the block, and downloads over nodes."""
    try:
        plt: Any = importlib.import_module("matplotlib.pyplot")
    except ImportError:
        print("\nno plot: matplotlib is not installed")
        return
    plt.rcParams["svg.hashsalt"] = "shuffle"  # the same file from the same numbers
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
    for shape in SHAPES[:2]:
        blocks = shape.rows * 2.0 ** np.arange(-3, 6)
        scores = [shuffle_score(shape.order(shuffle_block_size=int(block))).score for block in blocks]
        (line,) = left.plot(blocks / shape.rows, scores, label=shape.name, linewidth=1.2)
        default = shape.order()
        at = default.shuffle_block_size / shape.rows
        left.plot(at, shuffle_score(default).score, "o", color=line.get_color())
    left.set(xscale="log", xlabel="block, in shards (dot: the default)", ylabel="shuffle score", ylim=(0, 1.02))
    left.legend(fontsize=8)
    nodes = np.unique(np.concatenate([np.arange(1, 17), np.arange(16, 129, 4)]))
    for n_canonical_nodes in (64, 2048):
        order = SHAPES[1].order(num_canonical_nodes=n_canonical_nodes, shuffle_algo="py1s")
        downloads = [
            explain(order, Topology(int(n) * RANKS_PER_NODE, RANKS_PER_NODE), BATCH_SIZE).downloads_per_shard
            for n in nodes
        ]
        label = f"{n_canonical_nodes:,} canonical nodes" + (" (default)" if n_canonical_nodes == 64 else "")
        right.plot(nodes, downloads, label=label, linewidth=1.2)
    right.set(xlabel="nodes", ylabel="downloads of a shard, over all nodes", ylim=(0.9, 3))
    right.legend(fontsize=8)
    figure.savefig(path, metadata={"Date": None})
    print(f"\nplot: {path}")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plot", help="where to draw score and downloads, .svg or .png")
    path = parser.parse_args().plot
    for shape in SHAPES:
        order = shape.order()
        spread = fractions_in_use(order, all_canonical_nodes(order)).mean()
        score = shuffle_score(order)
        print(
            f"\n**{shape.name}** ({order.n_canonical_nodes} canonical nodes, a block of "
            f"{order.shuffle_block_size:,} samples; a shard's samples spread over {100 * spread:.3g} % of the epoch; "
            f"score {score.score:.2f}: mixing {score.mixing:.2f}, spread {score.spread:.2f})\n"
        )
        print(
            "| nodes | global batch | shards in a batch (full shuffle) | last 5 % | shards in use (most) | "
            "downloads a shard | counted |\n| ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
        )
        for n_nodes in NODES:
            print(row(order, shape, n_nodes), flush=True)
    if path:
        plot(path)


if __name__ == "__main__":
    main()
