"""What stores of several kinds need: what a refusal means, how a server is reached, optional packages."""
