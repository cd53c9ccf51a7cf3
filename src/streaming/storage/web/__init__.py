"""Whatever is asked over plain HTTP: the client, and any web server as a store."""
