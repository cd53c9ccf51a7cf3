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
import re
import sys
from collections.abc import Callable, Mapping, Sequence
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
_EACH_A_NODE: Final = (
    "Place ranks so that those of a machine are consecutive and equally many, or pass world=World(rank, num_ranks) in "
    "every rank, which counts each as a node of its own"
)
_LAYOUT: Final = re.compile(r"(?P<tasks>\d+)(\(x(?P<nodes>\d+)\))?", re.ASCII)
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

        Ranks of a machine must be consecutive, and machines hold equally many: ranks that see another placement raise
        WorldError. Not all placements show, unless `GROUP_WORLD_SIZE` says how many machines there are (torchrun sets
        it). Where placement is another one, World(rank, num_ranks) counts each rank as a node.
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
        return cls(rank, num_ranks, _Place.of(environment, rank, num_ranks).ranks_per_node(), "RANK and WORLD_SIZE")

    @classmethod
    def from_mesh(cls, mesh: Any, dims: str | Sequence[str], environment: Mapping[str, str] | None = None) -> World:
        """Count ranks along the dimensions `dims` of a `torch.distributed.device_mesh.DeviceMesh`.

        All processes with the same coordinates along `dims` (tensor or pipeline peers) get the same samples. A process
        that needs no data needs no dataset. `LOCAL_WORLD_SIZE` says which processes share a machine; where a machine's
        data-parallel ranks are not consecutive, each counts as a node. Raises WorldError, also where processes that
        are not consecutive share a machine.
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
        num_processes = max(_number(environment, "WORLD_SIZE") or 0, max(rank_of) + 1)
        place = _Place.of(environment, int(mesh.get_rank()), num_processes)
        per_node = place.ranks_per_node(lambda size: _consecutive(rank_of, num_ranks, size))
        return cls(mine, num_ranks, per_node, f"mesh dimensions {', '.join(names)}")

    @classmethod
    def from_slurm(cls, environment: Mapping[str, str] | None = None) -> World:
        """Read the variables of `srun`.

        They are `SLURM_PROCID`, `SLURM_STEP_NUM_TASKS` and `SLURM_STEP_TASKS_PER_NODE`; and, to know which tasks share
        a machine, `SLURM_DISTRIBUTION`, `SLURM_GTIDS` and `SLURM_LOCALID`. Where machines hold unequally many tasks, or
        tasks that are not consecutive (`--distribution=cyclic`), each rank counts as a node. Raises WorldError.
        """
        environment = os.environ if environment is None else environment
        rank = _needed(environment, "SLURM_PROCID", "srun")
        num_ranks = _number(environment, "SLURM_STEP_NUM_TASKS")
        num_ranks = _needed(environment, "SLURM_NTASKS", "srun") if num_ranks is None else num_ranks
        return cls(rank, num_ranks, _slurm_tasks_per_node(environment, rank, num_ranks), "SLURM_PROCID")

    @classmethod
    def from_mpi(cls, environment: Mapping[str, str] | None = None) -> World:
        """Read the variables that `mpirun` sets (Open MPI, else the PMI of MPICH and Intel MPI).

        Ranks of a machine must be consecutive (as without `--map-by node`), and machines hold equally many: ranks that
        see another placement raise WorldError, and not all placements show. World(rank, num_ranks) fits any.
        """
        environment = os.environ if environment is None else environment
        if "OMPI_COMM_WORLD_RANK" in environment:
            names = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
            local = ("OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK")
        else:
            names = ("PMI_RANK", "PMI_SIZE")
            local = ("MPI_LOCALNRANKS", "MPI_LOCALRANKID")
        rank, num_ranks = (_needed(environment, name, "mpirun") for name in names)
        return cls(rank, num_ranks, _Place.of(environment, rank, num_ranks, *local).ranks_per_node(), names[0])


def _consecutive(rank_of: Mapping[int, int], num_ranks: int, local_size: int) -> int:
    """The number of data-parallel ranks per machine, if all machines hold equally many consecutive ones; else 1."""
    if local_size == 1:
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
    return World(rank, num_ranks, _Place.of(environment, rank, num_ranks).ranks_per_node(), "torch.distributed")


@dataclass(frozen=True, slots=True)
class _Place:
    """What one rank sees of where it runs, under the launcher's names.

    Ranks that took different numbers for a machine would read some samples twice and others never. A rank sees only its
    own machine, and the first one sees the same whether the others are placed consecutively or in turns. So a rank that
    sees what others cannot see raises, unless it makes no difference.
    """

    rank: int
    num_ranks: int
    num_nodes: int | None
    local_size: int | None
    local_rank: int | None
    names: tuple[str, str]

    @classmethod
    def of(
        cls,
        environment: Mapping[str, str],
        rank: int,
        num_ranks: int,
        size_name: str = "LOCAL_WORLD_SIZE",
        rank_name: str = "LOCAL_RANK",
    ) -> _Place:
        """Read the variables of these names. Raises WorldError for impossible numbers."""
        local_size, local_rank = _number(environment, size_name), _number(environment, rank_name)
        if local_size is not None:
            if local_size < 1 or local_size > num_ranks:
                raise WorldError(f"{size_name}={local_size} is not between 1 and the world size {num_ranks}")
            if local_rank is not None and not 0 <= local_rank < local_size:
                raise WorldError(f"{rank_name}={local_rank} is not below {size_name}={local_size}")
        num_nodes = _number(environment, "GROUP_WORLD_SIZE") if size_name == "LOCAL_WORLD_SIZE" else None  # torchrun's
        return cls(rank, num_ranks, num_nodes or None, local_size, local_rank, (size_name, rank_name))

    def ranks_per_node(self, counted: Callable[[int], int] = int) -> int:
        """The number of ranks on a machine; 1, so that each rank counts as a node, where it is not said.

        `counted`: how many ranks count, of machines of so many processes. Raises WorldError.
        """
        size, size_name = self.local_size, self.names[0]
        if size is None:
            return 1
        if self.num_ranks % size or (self.num_nodes and size * self.num_nodes != self.num_ranks):
            if any(counted(other) > 1 for other in self._sizes_elsewhere(size)):
                raise WorldError(
                    f"{size_name}={size} of {self.num_ranks} ranks: machines hold unequally many, which some ranks "
                    f"cannot see. {_EACH_A_NODE}"
                )
            return 1
        if self.local_rank is not None and self.local_rank != self.rank % size and counted(size) > 1:
            raise WorldError(
                f"rank {self.rank} has {self.names[1]}={self.local_rank} with {size_name}={size}: the ranks of this "
                f"machine are not consecutive, which some ranks cannot see. {_EACH_A_NODE}"
            )
        return counted(size)

    def _sizes_elsewhere(self, size: int) -> list[int]:
        """Sizes of other machines whose ranks would not see that machines are uneven."""
        rest = self.num_ranks - size
        if self.num_nodes is None:
            return [other for other in range(2, rest + 1) if self.num_ranks % other == 0]
        mean, remainder = divmod(self.num_ranks, self.num_nodes)
        is_hidden = not remainder and self.num_nodes > 2 and mean <= rest - (self.num_nodes - 2)
        return [mean] if is_hidden else []


def _slurm_tasks_per_node(environment: Mapping[str, str], rank: int, num_ranks: int) -> int:
    """The number of tasks on a machine, if all machines hold equally many consecutive ones; else 1.

    All tasks see the layout and, where it is not the default, the distribution. A machine sees its own tasks, which
    are consecutive on all machines or on none, unless the user has placed each task (`arbitrary`).
    """
    # "4(x2)" is four on each of two nodes; "4,3" is uneven.
    layout = _LAYOUT.fullmatch(environment.get("SLURM_STEP_TASKS_PER_NODE", "").strip())
    distribution = environment.get("SLURM_DISTRIBUTION", "").strip().lower()
    if layout is None or not (distribution == "" or re.match(r"block\b", distribution)):
        return 1
    per_node, num_nodes = int(layout["tasks"]), int(layout["nodes"] or 1)
    if per_node < 1 or per_node * num_nodes != num_ranks:
        return 1
    first = rank - rank % per_node
    tasks = environment.get("SLURM_GTIDS", "").strip()
    if tasks:
        return per_node if tasks == ",".join(map(str, range(first, first + per_node))) else 1
    local = _number(environment, "SLURM_LOCALID")
    if local is not None and local != rank % per_node:
        raise WorldError(
            f"SLURM_PROCID={rank} has SLURM_LOCALID={local} with SLURM_STEP_TASKS_PER_NODE={layout[0]}: the tasks of "
            "this machine are not consecutive, and without SLURM_GTIDS and SLURM_DISTRIBUTION some tasks cannot see "
            f"it. {_EACH_A_NODE}"
        )
    return per_node


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
