"""The ranks: which of them get the same samples, and which share a node."""

from __future__ import annotations

from dataclasses import dataclass

from streaming.errors import OptionError


@dataclass(frozen=True, slots=True)
class Topology:
    """`n_ranks` readers of one epoch. Every `ranks_per_node` consecutive ranks share a machine.

    `replication` consecutive ranks get the same samples. They are one group, which to the order is one reader. A node
    is a machine, in whole groups; if groups do not fit into machines, each group is a node. Raises OptionError if a
    machine or a group would be incomplete; `Topology.of` accepts uneven machines.
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
        """Make nodes of `local_world_size` consecutive ranks, or of one rank if that is unknown or uneven.

        >>> Topology.of(16, 8).n_nodes, Topology.of(6, 4).n_nodes, Topology.of(3).n_nodes
        (2, 6, 3)
        """
        if local_world_size is None or local_world_size < 1 or n_ranks % local_world_size:
            return cls(n_ranks, 1, replication)
        return cls(n_ranks, local_world_size, replication)

    @property
    def n_groups(self) -> int:
        """The number of groups: readers that get samples of their own."""
        return self.n_ranks // self.replication

    @property
    def groups_per_node(self) -> int:
        """The number of groups on a node."""
        return 1 if self.ranks_per_node % self.replication else self.ranks_per_node // self.replication

    @property
    def n_nodes(self) -> int:
        """The number of nodes."""
        return self.n_groups // self.groups_per_node

    def group_of(self, rank: int) -> int:
        """Return the group of a rank."""
        return rank // self.replication

    def node_of(self, rank: int) -> int:
        """Return the node of a rank."""
        return self.group_of(rank) // self.groups_per_node

    def ranks_of(self, node: int) -> range:
        """Return the ranks of a node."""
        groups = self.groups_of(node)
        return range(groups.start * self.replication, groups.stop * self.replication)

    def groups_of(self, node: int) -> range:
        """Return the groups of a node."""
        return range(node * self.groups_per_node, (node + 1) * self.groups_per_node)
