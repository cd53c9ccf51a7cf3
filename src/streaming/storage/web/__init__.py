"""Plain HTTP: the client that several stores use, and any web server as a store."""
