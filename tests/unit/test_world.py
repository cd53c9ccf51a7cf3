"""Where rank and world size come from, and what is refused rather than guessed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from streaming import world as module
from streaming.errors import WorldError
from streaming.world import World

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}


def test_torchrun_variables_are_understood() -> None:
    """The four variables of torchrun give rank, world and node."""
    world = World.detect(TORCHRUN)
    assert (world.rank, world.num_ranks, world.node, world.rank_of_node, world.num_nodes) == (5, 8, 1, 1, 2)


def test_an_mpi_launch_without_passing_the_rank_on_stops_and_the_named_remedy_works() -> None:
    """mpirun started 6 processes: reading everything in each would go unnoticed, so it stops; from_mpi splits right."""
    environment = {"OMPI_COMM_WORLD_RANK": "4", "OMPI_COMM_WORLD_SIZE": "6", "OMPI_COMM_WORLD_LOCAL_SIZE": "3"}
    with pytest.raises(WorldError, match=r"OMPI_COMM_WORLD_SIZE=6.*World.from_mpi"):
        World.detect(environment)
    world = World.from_mpi(environment)
    assert (world.rank, world.num_ranks, world.node) == (4, 6, 1)
    pmi = World.from_mpi({"PMI_RANK": "1", "PMI_SIZE": "2"})
    assert (pmi.rank, pmi.num_ranks, pmi.ranks_per_node) == (1, 2, 1)


@pytest.mark.parametrize(("layout", "per_node"), [("2(x2)", 2), ("4", 4), ("3,1", 1), ("2(x1),1(x2)", 1), ("", 1)])
def test_an_srun_launch_without_passing_the_rank_on_stops_and_the_named_remedy_works(
    layout: str, per_node: int
) -> None:
    """As under mpirun; in an uneven layout each rank counts as a node."""
    environment = {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_TASKS_PER_NODE": layout}
    with pytest.raises(WorldError, match=r"SLURM_STEP_NUM_TASKS=4.*World.from_slurm"):
        World.detect(environment)
    world = World.from_slurm(environment)
    assert (world.rank, world.num_ranks, world.ranks_per_node) == (3, 4, per_node)


def test_a_batch_script_under_slurm_is_one_process() -> None:
    """SLURM_NTASKS is set in a batch script, too, which runs once: it is no sign of a launcher."""
    assert World.detect({"SLURM_NTASKS": "8", "SLURM_PROCID": "0"}).num_ranks == 1


@pytest.mark.parametrize("environment", [{}, {"LOCAL_WORLD_SIZE": "1"}, {"SLURM_NTASKS": "1"}, {"MASTER_ADDR": "a"}])
def test_a_bare_process_is_alone_and_says_nothing(
    caplog: pytest.LogCaptureFixture, environment: dict[str, str]
) -> None:
    """Without any launcher it is rank 0 of 1. That is how most programs run."""
    module._logged.clear()
    with caplog.at_level(logging.INFO, logger="streaming"):
        assert [World.detect(environment).num_ranks for _ in range(3)] == [1, 1, 1]
    assert not caplog.records


@pytest.mark.parametrize(
    "environment",
    [
        {"LOCAL_RANK": "0"},
        {"LOCAL_WORLD_SIZE": "4"},
        {"SLURM_NTASKS": "8", "SLURM_PROCID": "0"},
        {"PMIX_RANK": "0"},
        {"JSM_NAMESPACE_SIZE": "6"},
        {"NODE_RANK": "1"},
    ],
)
def test_a_hint_at_several_processes_is_warned_of_once(
    caplog: pytest.LogCaptureFixture, environment: dict[str, str]
) -> None:
    """A variable that some launcher sets, but not enough to know the rank: one warning, which names it."""
    module._logged.clear()
    with caplog.at_level(logging.INFO, logger="streaming"):
        assert [World.detect(environment).num_ranks for _ in range(3)] == [1, 1, 1]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert next(iter(environment)) in caplog.text
    assert "World(rank, num_ranks)" in caplog.text


def test_a_world_that_changes_in_a_process_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """Say that a process group was initialised after the first epoch, so that epochs belong to two worlds."""
    module._logged.clear()
    with caplog.at_level(logging.INFO, logger="streaming"):
        World.detect({})
        World.detect({"RANK": "3", "WORLD_SIZE": "8"})
    assert "was rank 0 of 1" in caplog.text
    assert "is now rank 3 of 8" in caplog.text


def test_a_look_ahead_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """What it finds may not hold: a process group may still be initialised."""
    module._logged.clear()
    with caplog.at_level(logging.INFO, logger="streaming"):
        assert World.detect({"LOCAL_RANK": "0"}, is_logged=False).num_ranks == 1
        assert not caplog.records
        World.detect({"LOCAL_RANK": "0"})
    assert len(caplog.records) == 1


def test_the_log_says_where_the_rank_came_from(caplog: pytest.LogCaptureFixture) -> None:
    """Rank, world size and their source are logged when they are found."""
    module._logged.clear()
    with caplog.at_level(logging.INFO, logger="streaming"):
        World.detect(TORCHRUN)
    assert "rank 5 of 8" in caplog.text
    assert "RANK and WORLD_SIZE" in caplog.text


@pytest.mark.parametrize(
    ("environment", "names"),
    [
        ({"RANK": "1"}, "WORLD_SIZE"),
        ({"WORLD_SIZE": "2"}, "RANK"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "rank 2"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "rank -1"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "at least one rank"),
        ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK='x'"),
        ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "3"}, "LOCAL_WORLD_SIZE=3"),
        ({"RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "2"}, "LOCAL_RANK=2"),
    ],
)
def test_contradictions_stop(environment: dict[str, str], names: str) -> None:
    """The error names variables of which half are missing, and impossible numbers."""
    with pytest.raises(WorldError, match=names):
        World.detect(environment)


def test_ranks_are_nodes_of_their_own_where_nothing_says_which_share_a_machine() -> None:
    """As with RANK and WORLD_SIZE alone."""
    assert World.detect({"RANK": "5", "WORLD_SIZE": "6"}).ranks_per_node == 1


# --- all ranks of a job must take the same number for a machine, or some samples come twice and others never

Machines = list[list[int]]
Variables = dict[str, str]


def _block(sizes: list[int]) -> Machines:
    """Ranks that are consecutive on each machine."""
    firsts = [sum(sizes[:number]) for number in range(len(sizes))]
    return [list(range(first, first + size)) for first, size in zip(firsts, sizes)]


def _cyclic(sizes: list[int]) -> Machines:
    """Ranks dealt to the machines in turns, as long as they have room."""
    machines: Machines = [[] for _ in sizes]
    order = [number for turn in range(max(sizes)) for number, size in enumerate(sizes) if turn < size]
    for rank, number in enumerate(order):
        machines[number].append(rank)
    return machines


def _local(names: tuple[str, str, str, str]) -> Callable[[Machines], dict[int, Variables]]:
    """A launcher that tells each rank its number, the world size, and the same of its machine."""

    def variables(machines: Machines) -> dict[int, Variables]:
        n = sum(map(len, machines))
        return {
            rank: {names[0]: str(rank), names[1]: str(n), names[2]: str(local), names[3]: str(len(ranks))}
            for ranks in machines
            for local, rank in enumerate(ranks)
        }

    return variables


def _torchrun(machines: Machines) -> dict[int, Variables]:
    plain = _local(("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"))(machines)
    return {rank: {**variables, "GROUP_WORLD_SIZE": str(len(machines))} for rank, variables in plain.items()}


def _srun(machines: Machines, *, tells: tuple[str, ...] = ("SLURM_LOCALID", "SLURM_GTIDS")) -> dict[int, Variables]:
    """Variables of each task; `tells` are those that say which tasks share a machine."""
    sizes = [len(ranks) for ranks in machines]
    layout = f"{sizes[0]}(x{len(sizes)})" if len(set(sizes)) == 1 else ",".join(map(str, sizes))
    n = str(sum(sizes))
    found: dict[int, Variables] = {}
    for ranks in machines:
        for local, rank in enumerate(ranks):
            told = {
                "SLURM_LOCALID": str(local),
                "SLURM_GTIDS": ",".join(map(str, ranks)),
                "SLURM_DISTRIBUTION": "block" if machines == _block(sizes) else "cyclic",
            }
            found[rank] = {
                "SLURM_PROCID": str(rank),
                "SLURM_STEP_NUM_TASKS": n,
                "SLURM_STEP_TASKS_PER_NODE": layout,
                **{name: told[name] for name in tells},
            }
    return found


LAUNCHERS: dict[str, tuple[Callable[[Machines], dict[int, Variables]], Callable[[Variables], World]]] = {
    "torchrun": (_torchrun, World.detect),
    "RANK": (_local(("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")), World.detect),
    "Open MPI": (
        _local(
            (
                "OMPI_COMM_WORLD_RANK",
                "OMPI_COMM_WORLD_SIZE",
                "OMPI_COMM_WORLD_LOCAL_RANK",
                "OMPI_COMM_WORLD_LOCAL_SIZE",
            )
        ),
        World.from_mpi,
    ),
    "MPICH": (_local(("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")), World.from_mpi),
    "srun": (_srun, World.from_slurm),
    "srun, distribution": (partial(_srun, tells=("SLURM_DISTRIBUTION",)), World.from_slurm),
    "srun, numbers alone": (partial(_srun, tells=("SLURM_LOCALID",)), World.from_slurm),
}


def _worlds(launcher: str, machines: Machines) -> tuple[list[World], list[WorldError]]:
    """The worlds that the ranks of a job find, and the errors of those that find none."""
    launch, find = LAUNCHERS[launcher]
    worlds: list[World] = []
    errors: list[WorldError] = []
    for rank, variables in launch(machines).items():
        try:
            worlds.append(find(variables))
        except WorldError as error:
            errors.append(error)
        else:
            assert worlds[-1].rank == rank
    return worlds, errors


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("n_machines", [1, 2, 3])
@pytest.mark.parametrize("per_machine", [1, 8])
def test_ranks_that_are_consecutive_on_a_machine_are_a_node(launcher: str, n_machines: int, per_machine: int) -> None:
    """Under any launcher, with one rank or eight a machine."""
    worlds, errors = _worlds(launcher, _block([per_machine] * n_machines))
    assert not errors
    assert {world.ranks_per_node for world in worlds} == {per_machine}


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("n_machines", [2, 3])
@pytest.mark.parametrize("per_machine", [1, 8])
def test_ranks_that_are_dealt_to_machines_in_turns_are_nodes_of_their_own_or_stop(
    launcher: str, n_machines: int, per_machine: int
) -> None:
    """SLURM says the same to all, so each counts as a node; elsewhere some cannot know, and the others raise."""
    worlds, errors = _worlds(launcher, _cyclic([per_machine] * n_machines))
    if per_machine == 1 or launcher in ("srun", "srun, distribution"):
        assert not errors
        assert {world.ranks_per_node for world in worlds} == {1}
    else:
        assert errors
        assert all("not consecutive" in str(error) and "World(rank, num_ranks)" in str(error) for error in errors)


SEE_MACHINES = ("torchrun", "srun", "srun, distribution", "srun, numbers alone")
"""Launchers that tell each rank how many machines there are."""


@given(
    launcher=st.sampled_from(sorted(LAUNCHERS)),
    place=st.sampled_from([_block, _cyclic]),
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=5),
)
@example("RANK", _block, [4, 2])
@example("torchrun", _block, [1, 3, 2])
@example("torchrun", _block, [2, 1, 1])
@example("Open MPI", _cyclic, [2, 2])
def test_ranks_of_a_job_agree_or_stop(launcher: str, place: Callable[[list[int]], Machines], sizes: list[int]) -> None:
    """Either all take the same number, and ranks of one node share a machine, or at least one rank raises.

    Machines may hold unequally many ranks. Where they do, each number divides the world (2, 1, 1) and no rank knows how
    many machines there are, nothing shows it: there World(rank, num_ranks) is needed, as the docstrings say.
    """
    machines = place(sizes)
    is_hidden = launcher not in SEE_MACHINES and not any(sum(sizes) % size for size in sizes)
    assume(len(set(sizes)) == 1 or not is_hidden)
    worlds, errors = _worlds(launcher, machines)
    if errors:
        assert all("World(rank, num_ranks)" in str(error) for error in errors)
        return
    assert len({world.ranks_per_node for world in worlds}) == 1
    machine_of = {rank: number for number, ranks in enumerate(machines) for rank in ranks}
    assert len({(world.node, machine_of[world.rank]) for world in worlds}) == worlds[0].num_nodes


def test_tasks_that_a_user_places_are_nodes_of_their_own() -> None:
    """An arbitrary distribution may be consecutive on one machine and not on another; all tasks see that it is one."""
    for variables in _srun([[0, 1], [2, 4], [3, 5]]).values():
        assert World.from_slurm({**variables, "SLURM_DISTRIBUTION": "arbitrary"}).ranks_per_node == 1
    for distribution in ("block", "block:cyclic", "Block:Block,Pack"):
        assert World.from_slurm({**_srun(_block([2, 2]))[3], "SLURM_DISTRIBUTION": distribution}).ranks_per_node == 2


def test_what_makes_no_difference_is_no_error() -> None:
    """Where a machine holds all ranks but one, none can take another for even."""
    for launcher in ("RANK", "torchrun", "Open MPI"):
        worlds, errors = _worlds(launcher, _block([5, 1]))
        assert not errors
        assert {world.ranks_per_node for world in worlds} == {1}


def test_a_world_can_be_given_in_numbers() -> None:
    """They are checked like those that are found."""
    assert World(3, 4, 2).node == 1
    with pytest.raises(WorldError):
        World(4, 4)
