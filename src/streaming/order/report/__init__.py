"""What an order means for the hardware that reads it, and how well it shuffles; no epoch is ever evaluated whole."""
