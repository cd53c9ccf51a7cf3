"""Which ranks exist, and which of them share a node."""

from __future__ import annotations

from dataclasses import dataclass

from streaming.errors import NotYetError, OptionError


@dataclass(frozen=True, slots=True)
class Topology:
    """`n_ranks` readers of one epoch; a node is `ranks_per_node` consecutive ranks, which share a machine.

    Raises OptionError if a node would be incomplete; `Topology.of` is the forgiving way in.
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
        if self.replication > 1:
            raise NotYetError(f"replication={self.replication} is not available yet; leave it unset")

    @classmethod
    def of(cls, n_ranks: int, local_world_size: int | None = None) -> Topology:
        """Nodes of `local_world_size` consecutive ranks; one rank is one node where that is unknown or uneven.

        >>> Topology.of(16, 8).n_nodes, Topology.of(6, 4).n_nodes, Topology.of(3).n_nodes
        (2, 6, 3)
        """
        if local_world_size is None or local_world_size < 1 or n_ranks % local_world_size:
            return cls(n_ranks, 1)
        return cls(n_ranks, local_world_size)

    @property
    def n_nodes(self) -> int:
        """How many nodes there are."""
        return self.n_ranks // self.ranks_per_node

    def node_of(self, rank: int) -> int:
        """The node of a rank."""
        return rank // self.ranks_per_node

    def local_rank_of(self, rank: int) -> int:
        """The number of a rank inside its node."""
        return rank % self.ranks_per_node

    def ranks_of(self, node: int) -> range:
        """The ranks of a node."""
        return range(node * self.ranks_per_node, (node + 1) * self.ranks_per_node)
