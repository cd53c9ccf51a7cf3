"""Which ranks exist, which of them get the same samples, and which share a node."""

from __future__ import annotations

from dataclasses import dataclass

from streaming.errors import OptionError


@dataclass(frozen=True, slots=True)
class Topology:
    """`n_ranks` readers of one epoch, of which `ranks_per_node` consecutive ones share a machine.

    `replication` consecutive ranks get the same samples: they are one group, and for the order one reader. A node is
    what shares a machine, in whole groups; where groups do not fit into machines, each group is a node. Raises
    OptionError if a machine or a group would be incomplete; `Topology.of` is the forgiving way in.
    """

    n_ranks: int
    ranks_per_node: int
    replication: int = 1

    def __post_init__(self) -> None:
        if self.n_ranks < 1:
            raise OptionError(f"n_ranks must be 1 or more, got {self.n_ranks}")
        if self.ranks_per_node < 1 or self.n_ranks % self.ranks_per_node:
            raise OptionError(
                f"ranks_per_node must divide the {self.n_ranks} ranks, got {self.ranks_per_node}; "
                "where nodes are uneven, use 1: each rank is then a node"
            )
        if self.replication < 1:
            raise OptionError(f"replication must be 1 or more, got {self.replication}")
        if self.n_ranks % self.replication:
            raise OptionError(
                f"replication={self.replication} must divide the {self.n_ranks} ranks, "
                "as that many consecutive ranks get the same samples"
            )

    @classmethod
    def of(cls, n_ranks: int, local_world_size: int | None = None, replication: int = 1) -> Topology:
        """Nodes of `local_world_size` consecutive ranks; one rank is one node where that is unknown or uneven.

        >>> Topology.of(16, 8).n_nodes, Topology.of(6, 4).n_nodes, Topology.of(3).n_nodes
        (2, 6, 3)
        """
        if local_world_size is None or local_world_size < 1 or n_ranks % local_world_size:
            return cls(n_ranks, 1, replication)
        return cls(n_ranks, local_world_size, replication)

    @property
    def n_groups(self) -> int:
        """How many readers there are that get samples of their own."""
        return self.n_ranks // self.replication

    @property
    def groups_per_node(self) -> int:
        """How many groups share a node."""
        return 1 if self.ranks_per_node % self.replication else self.ranks_per_node // self.replication

    @property
    def n_nodes(self) -> int:
        """How many nodes there are."""
        return self.n_groups // self.groups_per_node

    def group_of(self, rank: int) -> int:
        """The group of a rank."""
        return rank // self.replication

    def node_of(self, rank: int) -> int:
        """The node of a rank."""
        return self.group_of(rank) // self.groups_per_node

    def local_rank_of(self, rank: int) -> int:
        """The number of a rank inside its node."""
        return rank - self.ranks_of(self.node_of(rank)).start

    def ranks_of(self, node: int) -> range:
        """The ranks of a node."""
        groups = self.groups_of(node)
        return range(groups.start * self.replication, groups.stop * self.replication)

    def groups_of(self, node: int) -> range:
        """The groups of a node."""
        return range(node * self.groups_per_node, (node + 1) * self.groups_per_node)
