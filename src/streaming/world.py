"""Which rank this process is, of how many, and which ranks share a machine.

The only module that reads this from the environment. It never calls a collective, creates a process group or touches
an accelerator. It does not guess either. Where a launcher's variables are incomplete or contradict each other it
raises, because a rank that takes itself for the only one reads all the data, and nobody notices.
"""

from __future__ import annotations

import itertools
import logging
import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from streaming.arguments import whole
from streaming.errors import OptionError, WorldError
from streaming.fork_safety import is_loader_worker

_log: Final = logging.getLogger("streaming")

# Launchers set these for processes that they have really started side by side; the constructor that learns the rank.
# (SLURM_NTASKS alone is no such sign: it is also set in a batch script, which runs once.)
_LAUNCHERS: Final = (
    ("OMPI_COMM_WORLD_SIZE", "World.from_mpi()"),
    ("PMI_SIZE", "World.from_mpi()"),
    ("SLURM_STEP_NUM_TASKS", "World.from_slurm()"),
)
_ALONE: Final = "no launcher and no process group found: alone"
_SIZES: Final = ("SIZE", "NTASKS", "NPROCS", "NNODES", "RANKS")
_HINTS: Final = (
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "NODE_RANK",
    "SLURM_NTASKS",
    "SLURM_NPROCS",
    "PMIX_RANK",
    "MPI_LOCALNRANKS",
    "MV2_COMM_WORLD_SIZE",
    "JSM_NAMESPACE_SIZE",
    "PALS_RANKID",
    "FLUX_JOB_SIZE",
)
"""Variables that launchers set, and which do not suffice to know the rank."""


@dataclass(frozen=True, slots=True)
class World:
    """One data-parallel rank, and its place among all ranks.

    `num_ranks` counts the ranks of the job, `ranks_per_node` those on one machine, whose numbers are consecutive.
    `source` says where the numbers come from. Raises WorldError if they contradict each other.

    >>> World(rank=5, num_ranks=8, ranks_per_node=4).node
    1
    """

    rank: int = 0
    num_ranks: int = 1
    ranks_per_node: int = 1
    source: str = "given"

    def __post_init__(self) -> None:
        for name in ("rank", "num_ranks", "ranks_per_node"):
            try:
                object.__setattr__(self, name, whole(name, getattr(self, name)))
            except OptionError as error:
                raise WorldError(f"{error} ({self.source})") from None
        if self.num_ranks < 1 or self.ranks_per_node < 1:
            raise WorldError(
                f"a world has at least one rank and one rank per node, got num_ranks={self.num_ranks}, "
                f"ranks_per_node={self.ranks_per_node} ({self.source})"
            )
        if not 0 <= self.rank < self.num_ranks:
            raise WorldError(f"rank {self.rank} is not below the world size {self.num_ranks} ({self.source})")

    @property
    def node(self) -> int:
        """The number of this rank's machine."""
        return self.rank // self.ranks_per_node

    @property
    def num_nodes(self) -> int:
        """The number of machines; the last may hold fewer ranks."""
        return -(-self.num_ranks // self.ranks_per_node)

    @property
    def rank_of_node(self) -> int:
        """The number of this rank among those of its machine."""
        return self.rank % self.ranks_per_node

    @property
    def is_local_leader(self) -> bool:
        """Whether this is the first rank of its machine."""
        return self.rank_of_node == 0

    def __repr__(self) -> str:
        return f"World(rank {self.rank} of {self.num_ranks}, {self.ranks_per_node} a node; {self.source})"

    @classmethod
    def detect(cls, environment: Mapping[str, str] | None = None, *, is_logged: bool = True) -> World:
        """Find this process's world: from `torch.distributed` if it is initialised, else from the launcher's variables.

        The variables are `RANK`, `WORLD_SIZE`, `LOCAL_RANK` and `LOCAL_WORLD_SIZE`; without any of them the process
        is alone. `is_logged`: log what was found, once in a process. Raises WorldError where the variables are
        incomplete, or contradict each other or the process group, and where another launcher (MPI, SLURM) has started
        several processes but the rank was not passed on.
        """
        environment = os.environ if environment is None else environment
        group = _process_group()
        if group is not None:
            world = _from_group(group, environment)
        elif "RANK" in environment or "WORLD_SIZE" in environment:
            world = cls.from_environment(environment)
        else:
            for variable, remedy in _LAUNCHERS:
                if environment.get(variable, "1").strip() not in ("", "0", "1"):
                    raise WorldError(
                        f"{variable}={environment[variable]} says that several processes were started together, but "
                        "neither torch.distributed is initialised nor RANK and WORLD_SIZE are set; "
                        f"initialise it first, set them, or pass world={remedy}"
                    )
            world = cls(source=_ALONE)
        if is_logged:
            _log_once(world, environment)
        return world

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> World:
        """Read `RANK` and `WORLD_SIZE`, and `LOCAL_RANK` and `LOCAL_WORLD_SIZE` if they are set (torchrun's names).

        Raises WorldError.
        """
        environment = os.environ if environment is None else environment
        rank, num_ranks = (_number(environment, name) for name in ("RANK", "WORLD_SIZE"))
        if rank is None or num_ranks is None:
            missing, present = ("RANK", "WORLD_SIZE") if rank is None else ("WORLD_SIZE", "RANK")
            if missing == "RANK" and num_ranks == 1:
                rank = 0
            else:
                raise WorldError(f"{present} is set but {missing} is not: set both, or neither")
        assert rank is not None
        assert num_ranks is not None
        return cls(rank, num_ranks, _ranks_per_node(environment, rank, num_ranks), "RANK and WORLD_SIZE")

    @classmethod
    def from_mesh(cls, mesh: Any, dims: str | Sequence[str], environment: Mapping[str, str] | None = None) -> World:
        """Count ranks along the dimensions `dims` of a `torch.distributed.device_mesh.DeviceMesh`.

        All processes with the same coordinates along `dims` (tensor or pipeline peers) get the same samples. A process
        that needs no data needs no dataset. `LOCAL_WORLD_SIZE` says which processes share a machine; where a machine's
        data-parallel ranks are not consecutive, each counts as a node. Raises WorldError.
        """
        environment = os.environ if environment is None else environment
        names = (dims,) if isinstance(dims, str) else tuple(dims)
        known = tuple(mesh.mesh_dim_names or ())
        missing = [name for name in names if name not in known]
        if missing or not names:
            raise WorldError(f"the mesh has the dimensions {known}, not {missing or names}")
        shape = tuple(mesh.mesh.shape)
        axes = [known.index(name) for name in names]
        sizes = [shape[axis] for axis in axes]
        rank_of: dict[int, int] = {}  # process -> rank along dims
        for coordinates, process in zip(itertools.product(*map(range, shape)), mesh.mesh.flatten().tolist()):
            rank = 0
            for axis, size in zip(axes, sizes):
                rank = rank * size + coordinates[axis]
            rank_of[process] = rank
        mine = rank_of.get(int(mesh.get_rank()))
        if mine is None:
            raise WorldError(f"process {mesh.get_rank()} is not in the mesh: it needs no dataset")
        num_ranks = math.prod(sizes)
        per_node = _consecutive(rank_of, num_ranks, _number(environment, "LOCAL_WORLD_SIZE"))
        return cls(mine, num_ranks, per_node, f"mesh dimensions {', '.join(names)}")

    @classmethod
    def from_slurm(cls, environment: Mapping[str, str] | None = None) -> World:
        """Read the variables of `srun`: `SLURM_PROCID`, `SLURM_STEP_NUM_TASKS`, `SLURM_STEP_TASKS_PER_NODE`.

        Raises WorldError.
        """
        environment = os.environ if environment is None else environment
        rank = _needed(environment, "SLURM_PROCID", "srun")
        num_ranks = _number(environment, "SLURM_STEP_NUM_TASKS")
        num_ranks = _needed(environment, "SLURM_NTASKS", "srun") if num_ranks is None else num_ranks
        # "4(x2)" is four on each of two nodes; "4,3" is uneven, where each rank counts as a node of its own.
        layout = environment.get("SLURM_STEP_TASKS_PER_NODE", "").strip()
        per_node = layout.partition("(")[0]
        even = per_node.isascii() and per_node.isdigit() and "," not in layout
        return cls(rank, num_ranks, int(per_node) if even else 1, "SLURM_PROCID")

    @classmethod
    def from_mpi(cls, environment: Mapping[str, str] | None = None) -> World:
        """Read the variables that `mpirun` sets (Open MPI, else the PMI of MPICH and Intel MPI). Raises WorldError."""
        environment = os.environ if environment is None else environment
        if "OMPI_COMM_WORLD_RANK" in environment:
            names = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")
        else:
            names = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS")
        rank, num_ranks = (_needed(environment, name, "mpirun") for name in names[:2])
        local = _number(environment, names[2])
        even = local is not None and num_ranks % local == 0
        return cls(rank, num_ranks, local if local is not None and even else 1, names[0])


def _consecutive(rank_of: Mapping[int, int], num_ranks: int, local_size: int | None) -> int:
    """The number of data-parallel ranks per machine, if all machines hold equally many consecutive ones; else 1."""
    if not local_size:
        return 1
    machines: dict[int, set[int]] = {}
    for process, rank in rank_of.items():
        machines.setdefault(process // local_size, set()).add(rank)
    sizes = {len(ranks) for ranks in machines.values()}
    size = sizes.pop()
    if sizes or num_ranks % size:
        return 1
    aligned = all(min(ranks) % size == 0 and max(ranks) - min(ranks) == size - 1 for ranks in machines.values())
    return size if aligned else 1


def _process_group() -> tuple[int, int] | None:
    """The rank and size of the default process group, if the program has initialised one. Never imports torch."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return int(distributed.get_rank()), int(distributed.get_world_size())


def _from_group(group: tuple[int, int], environment: Mapping[str, str]) -> World:
    rank, num_ranks = group
    if rank < 0:
        raise WorldError("this process is not a member of the default process group: pass world=World(rank, num_ranks)")
    for name, found in (("RANK", rank), ("WORLD_SIZE", num_ranks)):
        said = _number(environment, name)
        if said is not None and said != found:
            raise WorldError(
                f"{name}={said} contradicts torch.distributed, which says {found}: "
                f"unset {name}, or pass world=World(rank, num_ranks)"
            )
    return World(rank, num_ranks, _ranks_per_node(environment, rank, num_ranks), "torch.distributed")


def _ranks_per_node(environment: Mapping[str, str], rank: int, num_ranks: int) -> int:
    """`LOCAL_WORLD_SIZE`; 1, so that each rank counts as a node, where it is not set or does not divide the world."""
    local_size = _number(environment, "LOCAL_WORLD_SIZE")
    local_rank = _number(environment, "LOCAL_RANK")
    if local_size is None:
        return 1
    if local_size < 1 or local_size > num_ranks:
        raise WorldError(f"LOCAL_WORLD_SIZE={local_size} is not between 1 and the world size {num_ranks}")
    if local_rank is not None and not 0 <= local_rank < local_size:
        raise WorldError(f"LOCAL_RANK={local_rank} is not below LOCAL_WORLD_SIZE={local_size}")
    if num_ranks % local_size:
        return 1
    if local_rank is not None and local_rank != rank % local_size:
        return 1  # ranks of one machine are not consecutive: no group of them can be treated as a node
    return local_size


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "").strip()
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise WorldError(f"{name}={text!r} is not a number") from None


def _needed(environment: Mapping[str, str], name: str, launcher: str) -> int:
    number = _number(environment, name)
    if number is None:
        raise WorldError(f"{name} is not set: this process was not started by {launcher}")
    return number


_logged: dict[int, World] = {}
"""The world that each process has logged: this one, and those from which it was forked."""


def _log_once(world: World, environment: Mapping[str, str]) -> None:
    """Log once in a process where rank and world came from. Warn where they may be wrong, and if they change."""
    before = _logged.get(os.getpid())
    if before == world or is_loader_worker():
        return
    _logged[os.getpid()] = world
    if before is not None:
        _log.warning(
            "this process was rank %d of %d (%s) and is now rank %d of %d (%s): initialise torch.distributed before "
            "the first iter(), or pass world=World(rank, num_ranks)",
            *(before.rank, before.num_ranks, before.source, world.rank, world.num_ranks, world.source),
        )
    elif world.source != _ALONE:
        _log.info("%r", world)
    elif hints := [f"{name}={environment[name]}" for name in _HINTS if _says_several(name, environment)]:
        _log.warning(
            "rank 0 of 1: %s, but %s may mean that several processes were started. Each of them would read all the "
            "data: initialise torch.distributed first, or pass world=World(rank, num_ranks), or World() if this "
            "process is meant to be alone",
            _ALONE.removesuffix(": alone"),
            ", ".join(hints),
        )


def _says_several(name: str, environment: Mapping[str, str]) -> bool:
    """Whether a variable of a launcher hints at several processes: a size above 1, or any number of a process."""
    value = environment.get(name, "").strip()
    return bool(value) and (value not in ("0", "1") if name.endswith(_SIZES) else True)
