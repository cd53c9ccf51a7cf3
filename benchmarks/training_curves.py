"""Does streaming train as well as a full shuffle in memory? Five seeds of a small CNN on handwritten digits.

    python benchmarks/training_curves.py [--plot docs/training.svg]

The data is the worst case for a loader: 1,500 digits stored class by class, in shards of about 25. Every loader trains
the same models, from the same first weights, for the same number of steps; only the order of samples differs. The bar:
the mean accuracy on 297 other digits is within one standard deviation of that of the full shuffle. The stored order is
there to show that the data is hard enough for the order to matter. The plot needs matplotlib, which is no dependency.
"""

from __future__ import annotations

import argparse
import importlib
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from streaming import MDSWriter, StreamingDataLoader, StreamingDataset

N_SEEDS = 5
N_EPOCHS = 6
BATCH_SIZE = 32
N_TRAIN = 1500
COLUMNS = {"pixels": "ndarray:float32:1,8,8", "class": "int"}

Batches = Callable[[int], Iterator[tuple[torch.Tensor, torch.Tensor]]]
"""From a seed to the batches of all epochs."""


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """All 1,797 digits in a fixed random order: float32 (sample, 1, 8, 8) in [0, 1], and int64 (sample,) classes."""
    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    pixels = torch.from_numpy((found.images[order] / 16).astype(np.float32)[:, None])
    return pixels, torch.from_numpy(found.target[order].astype(np.int64))


def write_by_class(out: str, pixels: torch.Tensor, classes: torch.Tensor) -> None:
    """Store digits class by class."""
    with MDSWriter(out=out, columns=COLUMNS, size_limit="8kb") as writer:
        for number in torch.argsort(classes, stable=True).tolist():
            writer.write({"pixels": pixels[number].numpy(), "class": int(classes[number])})


def in_memory(pixels: torch.Tensor, classes: torch.Tensor) -> Batches:
    """PyTorch's own full shuffle of a tensor."""

    def batches(seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        chance = torch.Generator().manual_seed(seed)
        loader = DataLoader(TensorDataset(pixels, classes), batch_size=BATCH_SIZE, shuffle=True, generator=chance)
        for _ in range(N_EPOCHS):
            yield from loader

    return batches


def streamed(folder: str, **settings: Any) -> Batches:
    """Our loader over the stored digits."""

    def batches(seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        with StreamingDataset(local=folder, shuffle_seed=seed, **settings) as dataset:
            loader = StreamingDataLoader(dataset, batch_size=BATCH_SIZE)
            for _ in range(N_EPOCHS):
                for batch in loader:
                    yield batch["pixels"], batch["class"]

    return batches


def train(batches: Batches, seed: int, test: tuple[torch.Tensor, torch.Tensor]) -> tuple[list[float], float]:
    """Loss of every step, and the accuracy at the end."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for pixels, classes in batches(seed):
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(model(pixels), classes)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        losses.append(loss.item())
    with torch.no_grad():
        return losses, float((model(test[0]).argmax(1) == test[1]).double().mean())


def plot(curves: dict[str, list[list[float]]], path: str) -> None:
    """Loss over steps, the mean over seeds, smoothed over a quarter of an epoch."""
    try:
        plt: Any = importlib.import_module("matplotlib.pyplot")
    except ImportError:
        print("no plot: matplotlib is not installed")
        return
    plt.rcParams["svg.hashsalt"] = "training"  # the same file from the same numbers
    width = N_TRAIN // BATCH_SIZE // 4
    figure, axes = plt.subplots(figsize=(7, 3.5), layout="constrained")
    for label, losses in curves.items():
        mean = np.mean(losses, axis=0)
        axes.plot(np.convolve(mean, np.ones(width) / width, "valid"), label=label, linewidth=1.2)
    axes.set(xlabel="step", ylabel="training loss", yscale="log")
    axes.legend(fontsize=8)
    figure.savefig(path, metadata={"Date": None})
    print(f"plot: {path}")


def main() -> None:
    """Print the table as markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plot", help="where to draw the curves, .svg or .png")
    path = parser.parse_args().plot
    torch.set_num_threads(2)
    pixels, classes = digits()
    test = pixels[N_TRAIN:], classes[N_TRAIN:]
    with tempfile.TemporaryDirectory(prefix="streaming-curves-") as folder:
        write_by_class(folder, pixels[:N_TRAIN], classes[:N_TRAIN])
        loaders = {
            "full shuffle in memory": in_memory(pixels[:N_TRAIN], classes[:N_TRAIN]),
            "streamed, defaults": streamed(folder, shuffle=True),
            "streamed, a block of 4 shards": streamed(folder, shuffle=True, shuffle_block_size=100),
            "streamed, stored order": streamed(folder, shuffle=False),
        }
        found = {name: [train(batches, seed, test) for seed in range(N_SEEDS)] for name, batches in loaders.items()}
    accuracies = {name: 100 * np.array([accuracy for _, accuracy in runs]) for name, runs in found.items()}
    full = accuracies["full shuffle in memory"]
    print(f"{N_SEEDS} seeds, {N_EPOCHS} epochs of {N_TRAIN} digits stored class by class, batches of {BATCH_SIZE}\n")
    print("| order of samples | accuracy, mean ± standard deviation | difference from the full shuffle | last loss |")
    print("| --- | ---: | ---: | ---: |")
    for name, values in accuracies.items():
        last = np.mean([losses[-N_TRAIN // BATCH_SIZE :] for losses, _ in found[name]])
        difference = values.mean() - full.mean()
        print(f"| {name} | {values.mean():.2f} ± {values.std(ddof=1):.2f} % | {difference:+.2f} | {last:.4f} |")
    bar, difference = full.std(ddof=1), abs(accuracies["streamed, defaults"].mean() - full.mean())
    verdict = "within" if difference < bar else "NOT within"
    print(
        f"\ndefaults and full shuffle differ by {difference:.2f} points, {verdict} one standard deviation ({bar:.2f})"
    )
    if path:
        plot({name: [losses for losses, _ in runs] for name, runs in found.items()}, path)


if __name__ == "__main__":
    main()
