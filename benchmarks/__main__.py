"""All benchmarks, one after the other: `python -m benchmarks [--quick] [--peer PYTHON]`.

`--peer` names an interpreter with mosaicml-streaming 0.13, to be measured beside us where a benchmark has a peer.
`--quick` runs the small version of those that have one.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PEER, QUICK = "peer", "quick"
TAKES: dict[str, set[str]] = {
    "order_scale": {QUICK},
    "order_curves": set(),
    "shuffle_quality": set(),
    "training_curves": set(),
    "index_parse": set(),
    "read_warm": {PEER},
    "cold_start": {PEER, QUICK},
    "random_access": {PEER, QUICK},
    "steady_state": {QUICK},
}
"""The benchmarks, and which options each has."""


def main() -> None:
    """Run each in a fresh process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--peer")
    arguments = parser.parse_args()
    given = {QUICK: ["--quick"] if arguments.quick else [], PEER: ["--peer", arguments.peer] if arguments.peer else []}
    for name, options in TAKES.items():
        print(f"\n=== {name}", flush=True)
        chosen = [word for option in sorted(options) for word in given[option]]
        subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *chosen], check=True, cwd=ROOT)


if __name__ == "__main__":
    main()
