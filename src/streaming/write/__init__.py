"""Writing datasets: samples to shards, shards to their place, and the index last."""
