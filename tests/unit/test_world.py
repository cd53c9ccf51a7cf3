"""Where rank and world size come from, and what is refused rather than guessed."""

from __future__ import annotations

import logging

import pytest

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


@pytest.mark.parametrize(
    "extra",
    [{}, {"LOCAL_WORLD_SIZE": "4"}, {"LOCAL_WORLD_SIZE": "3", "LOCAL_RANK": "0"}],
    ids=["unknown", "uneven", "not consecutive"],
)
def test_ranks_that_do_not_form_even_consecutive_nodes_are_nodes_of_their_own(extra: dict[str, str]) -> None:
    """Where machines are unknown or uneven, each rank is a node."""
    assert World.detect({"RANK": "5", "WORLD_SIZE": "6", **extra}).ranks_per_node == 1


def test_a_world_can_be_given_in_numbers() -> None:
    """They are checked like those that are found."""
    assert World(3, 4, 2).node == 1
    with pytest.raises(WorldError):
        World(4, 4)
