"""Layouts beyond plain data parallelism: meshes, ranks without data, and ranks that all read everything."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from streaming import StreamingDataset, World
from streaming.errors import WorldError
from support.numbered import checked_id, write_numbered
from support.ranks import Job, Layout, Report, finish, start_rank

NAMES = ("dp", "tp", "pp")


def _on_the_mesh(job: Job, rank: int) -> Report:
    """Run process `rank` of 8 in a 2 x 2 x 2 mesh; only the first pipeline stage makes a dataset."""
    import torch.distributed as distributed
    from torch.distributed.device_mesh import init_device_mesh

    distributed.init_process_group(
        "gloo", init_method=f"file://{job.cache}/group", rank=rank, world_size=job.layout.n_ranks
    )
    mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=tuple(job.options["dims"]))
    if mesh.get_local_rank("pp"):
        return Report([], None)
    dataset = StreamingDataset(local=job.remote, shuffle=True, batch_size=4, world=World.from_mesh(mesh, "dp"))
    ids = list(map(checked_id, dataset))
    assert "mesh" in repr(dataset)
    return Report([[[mesh.get_local_rank("dp")], ids]], dataset.state_dict(0, from_beginning=False))


@pytest.mark.parametrize("dims", list(itertools.permutations(NAMES)), ids=lambda dims: "x".join(dims))
def test_peers_get_the_same_and_data_ranks_get_their_shares(dims: tuple[str, ...], tmp_path: Path) -> None:
    """Tensor peers get equal samples, data-parallel ranks disjoint ones; nobody waits for a stage without data."""
    source = str(tmp_path / "source")
    write_numbered(source, 120)
    job = Job(Layout(1, 8, 0), 8, source, str(tmp_path), options={"dims": dims})
    reports = [report for report in finish([start_rank(job, rank, _on_the_mesh) for rank in range(8)]) if report.epochs]
    assert len(reports) == 4
    shares: dict[int, list[list[int]]] = {0: [], 1: []}
    for report in reports:
        (dp,), ids = report.epochs[0]
        shares[dp].append(ids)
    assert [len(peers) for peers in shares.values()] == [2, 2]
    assert all(first == second for first, second in shares.values())
    assert sorted(shares[0][0] + shares[1][0]) == list(range(120))
    assert all(report.state == reports[0].state for report in reports)


def test_ranks_may_all_read_everything(tmp_path: Path) -> None:
    """`world=World()` switches the split off: every process gets all samples in the same order."""
    write_numbered(str(tmp_path / "source"), 50)
    orders = []
    for rank in range(4):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RANK", str(rank))
            patch.setenv("WORLD_SIZE", "4")
            dataset = StreamingDataset(local=str(tmp_path / "source"), shuffle=True, world=World())
            orders.append(list(map(checked_id, dataset)))
    assert sorted(orders[0]) == list(range(50))
    assert all(order == orders[0] for order in orders)


class _Mesh:
    """What `World.from_mesh` reads of a DeviceMesh, for layouts that need more processes than a test should start."""

    def __init__(self, shape: tuple[int, ...], names: tuple[str, ...], rank: int) -> None:
        import torch

        self.mesh = torch.arange(int(torch.tensor(shape).prod())).reshape(shape)
        self.mesh_dim_names = names
        self._rank = rank

    def get_rank(self) -> int:
        return self._rank


@pytest.mark.parametrize(
    ("shape", "names", "dims", "local", "per_node"),
    [
        ((4, 8), ("dp", "tp"), "dp", 8, 1),  # a machine is one data rank's tensor group
        ((8, 4), ("dp", "tp"), "dp", 8, 2),  # two data ranks a machine, side by side
        ((4, 8), ("tp", "dp"), "dp", 8, 8),  # every machine holds all data ranks
        ((2, 2, 8), ("replicate", "shard", "tp"), ("replicate", "shard"), 8, 1),
        ((2, 8, 2), ("pp", "dp", "tp"), "dp", 8, 4),
        ((3, 4), ("dp", "tp"), "dp", 8, 1),  # uneven machines
    ],
)
def test_data_ranks_of_one_machine_count_as_a_node(
    shape: tuple[int, ...], names: tuple[str, ...], dims: str, local: int, per_node: int
) -> None:
    """Where they are even and consecutive, so that a machine needs only the shards of its own canonical nodes."""
    world = World.from_mesh(_Mesh(shape, names, 5), dims, {"LOCAL_WORLD_SIZE": str(local)})
    assert world.ranks_per_node == per_node


@pytest.mark.parametrize(
    ("shape", "dims", "is_refused"),
    [
        ((4, 4), "dp", True),  # whole machines of data ranks, as far as the first process can see
        ((2, 8), "tp", True),
        ((2, 8), "dp", False),  # a machine holds one data rank at most, however processes are placed
    ],
)
def test_processes_of_a_mesh_that_are_not_consecutive_on_a_machine_stop(
    shape: tuple[int, int], dims: str, is_refused: bool
) -> None:
    """Where it makes a difference: the first process sees the same in both cases."""
    names = ("dp", "tp")
    mesh, environment = _Mesh(shape, names, 1), {"LOCAL_WORLD_SIZE": "8", "LOCAL_RANK": "0"}
    if is_refused:
        with pytest.raises(WorldError, match="not consecutive"):
            World.from_mesh(mesh, dims, environment)
    else:
        assert World.from_mesh(mesh, dims, environment).ranks_per_node == 1


def test_a_mesh_without_the_dimension_is_refused() -> None:
    """The error names it."""
    with pytest.raises(WorldError, match="dp"):
        World.from_mesh(_Mesh((2, 2), ("x", "y"), 0), "dp")
    with pytest.raises(WorldError, match="not in the mesh"):
        World.from_mesh(_Mesh((2, 2), ("x", "y"), 9), "x")
