"""Write a data set, stream it, train, stop in mid-epoch, resume: the whole life of a training run in one script.

    python examples/demo.py                              # everything in a temporary folder
    python examples/demo.py --remote s3://bucket/prefix  # through an object store (S3_ENDPOINT_URL, AWS_* variables)

The images are the 1,797 handwritten digits that scikit-learn carries, stored as PNG. The model is a small CNN.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch import nn

from streaming import MDSWriter, StreamingDataLoader, StreamingDataset

BATCH_SIZE = 32
N_EPOCHS = 4


def write_digits(out: str, split: slice) -> int:
    """Write some of the digits as PNG images with their class; return how many."""
    digits = load_digits()
    images = (digits.images[split] * (255 / 16)).round().astype(np.uint8)
    with MDSWriter(
        out=out, columns={"image": "png", "class": "int"}, compression="zstd", hashes=["xxh64"], size_limit="8kb"
    ) as writer:
        for image, label in zip(images, digits.target[split].tolist()):
            writer.write({"image": Image.fromarray(image), "class": label})
    return len(images)


class Digits(StreamingDataset):
    """The stored digits as what the model takes: float32 (1, 8, 8) in [0, 1] and the class."""

    def get_item(self, sample_id: int, retry: int = 7) -> tuple[torch.Tensor, int]:
        sample = super().get_item(sample_id, retry)
        pixels = np.asarray(sample["image"], dtype=np.float32)[None] / 255
        return torch.from_numpy(pixels), sample["class"]


def make_loader(remote: str, local: str, *, shuffle: bool = True, num_workers: int = 2) -> StreamingDataLoader:
    dataset = Digits(remote=remote, local=local, shuffle=shuffle, shuffle_seed=17)
    return StreamingDataLoader(dataset, batch_size=BATCH_SIZE, num_workers=num_workers)


class Training:
    """A model, its optimiser, and one step."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * 4 * 4, 10),
        )
        self.optimiser = torch.optim.Adam(self.model.parameters(), lr=3e-3)

    def step(self, images: torch.Tensor, classes: torch.Tensor) -> float:
        self.optimiser.zero_grad()
        loss = nn.functional.cross_entropy(self.model(images), classes)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()
        return loss.item()

    def state_dict(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimiser": self.optimiser.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimiser.load_state_dict(state["optimiser"])

    def accuracy(self, loader: StreamingDataLoader) -> float:
        n_right = n_seen = 0
        with torch.no_grad():
            for images, classes in loader:
                n_right += int((self.model(images).argmax(1) == classes).sum())
                n_seen += len(classes)
        return n_right / n_seen


def losses(training: Training, loader: StreamingDataLoader) -> Iterator[float]:
    """Train epoch after epoch; yield the loss of every batch."""
    while True:
        for images, classes in loader:
            yield training.step(images, classes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--remote", help="where to store the data set, s3://bucket/prefix; default: a temporary folder")
    remote = parser.parse_args().remote
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="streaming-demo-") as folder:
        remote = (remote or os.path.join(folder, "store")).rstrip("/")
        n_train = write_digits(f"{remote}/train", slice(0, 1500))
        n_test = write_digits(f"{remote}/test", slice(1500, None))
        print(f"wrote {n_train} + {n_test} images to {remote}")

        cache = os.path.join(folder, "cache")
        n_batches = -(-n_train // BATCH_SIZE)
        n_before_stop = n_batches + n_batches // 3  # somewhere in the second epoch

        whole = Training()
        unbroken = list(
            islice(losses(whole, make_loader(f"{remote}/train", f"{cache}/unbroken")), N_EPOCHS * n_batches)
        )
        print(f"trained {N_EPOCHS} epochs of {n_batches} batches: loss {unbroken[0]:.3f} -> {unbroken[-1]:.3f}")

        # The same run again, but stopped in mid-epoch with a checkpoint ...
        training, loader = Training(), make_loader(f"{remote}/train", f"{cache}/stopped")
        before = list(islice(losses(training, loader), n_before_stop))
        checkpoint = os.path.join(folder, "checkpoint.pt")
        torch.save({"training": training.state_dict(), "data": loader.state_dict()}, checkpoint)
        print(f"stopped after {n_before_stop} batches; state of the data: {json.dumps(loader.state_dict())[:100]} ...")
        del training, loader

        # ... and resumed from it, with another number of workers.
        saved = torch.load(checkpoint)
        training, loader = Training(), make_loader(f"{remote}/train", f"{cache}/resumed", num_workers=1)
        training.load_state_dict(saved["training"])
        loader.load_state_dict(saved["data"])
        after = list(islice(losses(training, loader), N_EPOCHS * n_batches - n_before_stop))

        if before + after != unbroken:
            raise SystemExit("the resumed run is not the unbroken run")
        print(f"resumed for {len(after)} batches: every loss equals that of the run that was not stopped")
        accuracy = training.accuracy(make_loader(f"{remote}/test", f"{cache}/test", shuffle=False))
        print(f"accuracy on {n_test} images never trained on: {accuracy:.1%}")
        if accuracy < 0.9:
            raise SystemExit("that is too low: the model has not learnt from its data")
        del loader
    print(f"done in {time.monotonic() - start:.1f} s")


if __name__ == "__main__":
    main()
