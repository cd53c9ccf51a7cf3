"""What a rank process shares with its loader workers: anonymous files, which they inherit."""
