"""What a rank process shares with its loader workers: files without a name, which they inherit."""
