"""The fetcher as a program: its process, the connections of its clients, and its parts put together."""
