"""What the fetcher decides: pure functions and state. No clock, disk, thread or socket; times come in as arguments."""
