"""All benchmarks, one after the other: `python -m benchmarks [--peer PYTHON]`.

`--peer` names an interpreter with mosaicml-streaming 0.13, to be measured beside us.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
SCRIPTS = (
    "order_scale.py",
    "order_curves.py",
    "shuffle_quality.py",
    "training_curves.py",
    "index_parse.py",
    "read_warm.py",
)


def main() -> None:
    """Run each script in a fresh process; arguments go to the one that takes them."""
    for script in SCRIPTS:
        print(f"\n=== {script}", flush=True)
        arguments = sys.argv[1:] if script == "read_warm.py" else []
        subprocess.run([sys.executable, str(HERE / script), *arguments], check=True)


if __name__ == "__main__":
    main()
