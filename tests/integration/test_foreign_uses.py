"""Objects copied, pickled, and used by threads and processes for which they were not made: each works, or says why not.

Each case is a program of its own with a deadline, so that a hang is a failure, also one at the end of the interpreter.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from support.numbered import write_numbered

BEGIN = """
import asyncio, copy, gc, multiprocessing, os, pickle, sys, tempfile, threading, time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from torch.utils.data import ChainDataset, ConcatDataset, DataLoader, Subset
from streaming import LocalDataset, Stream, StreamingDataLoader, StreamingDataset
from streaming.errors import StreamingError
from support.numbered import checked_id, checked_ids

N, ALL = 200, list(range(200))
SOURCE = sys.argv[1]

def dataset(kind=StreamingDataset):
    "A dataset whose shards must be fetched."
    return kind(remote=SOURCE, local=tempfile.mkdtemp() + "/cache", batch_size=4, shuffle=True)

def loader(n_workers=0, **options):
    return StreamingDataLoader(dataset(), batch_size=4, num_workers=n_workers, collate_fn=checked_ids, **options)

def ids(samples):
    return sorted(map(checked_id, samples))

def flat(batches):
    return sorted(number for batch in batches for number in batch)

def at_once(n, work):
    "What `work(k)` gives in n threads, or the error that it raises."
    found = [None] * n
    def run(k):
        try:
            found[k] = work(k)
        except Exception as error:
            found[k] = error
    threads = [threading.Thread(target=run, args=(k,)) for k in range(n)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    return found

def error_of(work):
    try:
        work()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"

def by_number(k):
    return checked_id(shared[k])

"""

CASES = {
    # --- copies
    "a copy shares epochs and outlives the original": """
        one = dataset(); two = copy.copy(one)
        assert ids(one) == ids(two) == ALL and two.next_epoch == 2
        del one; gc.collect()
        assert ids(two) == ALL
    """,
    "a copy of what is closed is closed": """
        one = dataset(); two = copy.copy(one); one.close()
        assert "ClosedError" in error_of(lambda: ids(two))
    """,
    "a deep copy has epochs of its own": """
        one = dataset(); samples = iter(one)
        first = [checked_id(next(samples)) for _ in range(10)]
        for two in (copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
            assert two.next_epoch == 0 and ids(two) == ALL
        assert sorted(first + ids(samples)) == ALL and one.next_epoch == 1
    """,
    "a pickle of what is closed can be read": """
        one = dataset(); one.close()
        assert ids(pickle.loads(pickle.dumps(one))) == ALL
    """,
    "copies of a loader have workers of their own": """
        for options in ({}, {"n_workers": 2}, {"n_workers": 2, "persistent_workers": True}):
            one = loader(**options)
            batches = iter(one); next(batches)
            copies = [copy.copy(one), copy.deepcopy(one), pickle.loads(pickle.dumps(one))]
            assert len(list(batches)) == 49
            for two in copies:
                assert flat(two) == ALL
            assert flat(one) == ALL
    """,
    "an iterator cannot be copied": """
        for samples in (iter(dataset()), iter(loader())):
            for way in (copy.copy, copy.deepcopy, pickle.dumps):
                assert "cannot pickle 'generator'" in error_of(lambda: way(samples))
    """,
    "streams and views of them can be copied": """
        for stream in (Stream(remote=SOURCE, repeat=2), dataset().streams[0]):
            for two in (copy.copy(stream), copy.deepcopy(stream), pickle.loads(pickle.dumps(stream))):
                assert vars(two).keys() == vars(stream).keys() and two.local == stream.local
                assert set(ids(StreamingDataset(streams=two, batch_size=4))) == set(ALL)
    """,
    "a local dataset can be copied": """
        one = LocalDataset(SOURCE); one[3]
        for two in (copy.copy(one), copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
            assert ids(two) == ALL
    """,
    # --- threads
    "iterators of threads are epochs of their own": """
        one = dataset()
        assert at_once(4, lambda k: ids(one)) == [ALL] * 4 and one.next_epoch == 4
    """,
    "an iterator shared by threads loses nothing, or raises": """
        samples, found = iter(dataset()), []
        def read(k):
            for sample in samples: found.append(checked_id(sample))
        errors = [error for error in at_once(4, read) if error is not None]
        assert all("generator already executing" in str(error) for error in errors) and len(errors) < 4
        assert sorted(found) == ALL
    """,
    "threads read by number": """
        one = dataset()
        assert sorted(sum(at_once(8, lambda k: ids(one[range(k, N, 8)])), [])) == ALL
        with ThreadPoolExecutor(8) as pool:
            assert ids(pool.map(one.__getitem__, ALL)) == ALL
    """,
    "what a thread has made is everybody's": """
        one, = at_once(1, lambda k: dataset())
        assert ids(one) == ALL
        assert flat(DataLoader(one, batch_size=4, num_workers=2, collate_fn=checked_ids)) == ALL
    """,
    "loaders run in threads": """
        assert at_once(2, lambda k: flat(loader(2))) == [ALL] * 2
        one = loader(2)
        assert at_once(2, lambda k: flat(one)) == [ALL] * 2
    """,
    "a state may be asked for in another thread": """
        one = loader(); found = []
        for _ in one: found += at_once(1, lambda k: one.state_dict()["sample_in_epoch"])
        assert found == list(range(4, N + 1, 4))
    """,
    "coroutines read in threads": """
        one = dataset()
        async def main(): return await asyncio.gather(*[asyncio.to_thread(one.__getitem__, i) for i in ALL])
        assert ids(asyncio.run(main())) == ALL
    """,
    # --- loaders
    "a loader iterated twice at once gives two epochs": """
        for options in ({}, {"n_workers": 2}):
            one = loader(**options)
            pairs = list(zip(iter(one), iter(one)))
            assert flat(a for a, _ in pairs) == flat(b for _, b in pairs) == ALL
    """,
    "an older iterator of persistent workers raises": """
        one = loader(2, persistent_workers=True)
        older = iter(one); next(older)
        newer = iter(one)
        assert "WorkerError: iter() was called again" in error_of(lambda: next(older))
        assert flat(newer) == ALL and flat(one) == ALL
    """,
    "an epoch within an epoch": """
        one = dataset(); n = 0
        for sample in one:
            n += 1
            if n == 3: assert ids(one) == ALL
        assert n == N and one.next_epoch == 2
    """,
    "a sample made of others": """
        class Pairs(StreamingDataset):
            def get_item(self, i): super().get_item((i + 7) % N); return super().get_item(i)
        assert ids(dataset(Pairs)) == ALL
    """,
    "datasets of PyTorch's made of ours": """
        local = LocalDataset(SOURCE)
        for made, expected in (
            (ConcatDataset([local, local]), sorted(2 * ALL)),
            (ChainDataset([dataset(), dataset()]), sorted(2 * ALL)),
            (Subset(dataset(), [1, 2, 3]), [1, 2, 3]),
        ):
            assert flat(DataLoader(made, batch_size=4, collate_fn=checked_ids)) == expected
    """,
    # --- processes
    "a fork in the middle of an epoch": """
        samples = iter(dataset()); first = [checked_id(next(samples)) for _ in range(7)]
        child = os.fork()
        rest = ids(samples)
        if not child: os._exit(0 if sorted(first + rest) == ALL else 1)
        assert sorted(first + rest) == ALL and os.waitpid(child, 0)[1] == 0
    """,
    "a fork in the middle of an epoch of workers": """
        for persistent in (False, True):
            one = loader(2, persistent_workers=persistent); batches = iter(one); first = next(batches)
            child = os.fork()
            if not child:
                says = error_of(lambda: next(batches))
                fresh = flat(one) == ALL
                del batches, one; gc.collect()
                os._exit(0 if "WorkerError" in says and "forked" in says and fresh else 1)
            assert os.waitpid(child, 0)[1] == 0
            assert flat([first, *batches]) == ALL
    """,
    "pools of processes": """
        for method in ("fork", "spawn", "forkserver"):
            with multiprocessing.get_context(method).Pool(2) as pool:
                assert ids(pool.map(shared.__getitem__, ALL)) == ALL
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert sorted(pool.map(by_number, ALL)) == ALL
        with ProcessPoolExecutor(2) as pool:
            assert ids(pool.map(shared.get_item, ALL[::20])) == ALL[::20]
    """,
    # --- ends
    "a generator closed late": """
        one = dataset(); samples = iter(one); next(samples); one.close(); samples.close()
        assert next(samples, None) is None
        one = dataset(); samples = iter(one); next(samples); one.close()
        assert "ClosedError" in error_of(lambda: list(samples))
    """,
    "an iterator in a cycle": """
        class Holder: pass
        holder = Holder(); holder.samples = iter(dataset()); next(holder.samples); holder.itself = holder
        del holder; gc.collect()
    """,
    "an exit in the middle of an epoch": "samples = iter(dataset()); next(samples); sys.exit()",
    "an exit in the middle of an epoch of workers": "batches = iter(loader(2)); next(batches); sys.exit()",
    "an exit in the middle of an epoch of a plain loader": """
        plain = DataLoader(dataset(), batch_size=4, num_workers=2, collate_fn=checked_ids)
        batches = iter(plain); next(batches); sys.exit()
    """,
    "an exit while a thread reads": """
        one = dataset()
        def read():
            while True: ids(one)
        threading.Thread(target=read, daemon=True).start(); time.sleep(0.3); sys.exit()
    """,
    "an exit without any clean-up": "batches = iter(loader(2)); next(batches); os._exit(0)",
    # --- no constructor
    "a subclass that forgot the constructor of the dataset": """
        class Forgot(StreamingDataset):
            def __init__(self): self.x = 1
        one = Forgot()
        for ask in (len, iter, repr, StreamingDataset.close, lambda one: one[0], lambda one: one.size):
            assert "must call super().__init__" in error_of(lambda: ask(one)), error_of(lambda: ask(one))
    """,
}  # fmt: skip


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("foreign") / "source"
    write_numbered(str(folder), 200)
    return folder


@pytest.mark.parametrize("name", CASES)
def test_it_works_or_says_why_not(source: Path, tmp_path: Path, name: str) -> None:
    """And the program ends, in silence."""
    body = textwrap.indent(textwrap.dedent(CASES[name]), "    ")
    shared = "shared = dataset()\n" if "shared" in body else ""
    program = tmp_path / "program.py"
    program.write_text(f"{BEGIN}{shared}if __name__ == '__main__':\n{body}\n")
    run = subprocess.run(
        [sys.executable, "-W", "ignore", str(program), str(source)],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""
