"""In which order a canonical node has its samples: one file for each `shuffle_algo`, and the table of them."""
