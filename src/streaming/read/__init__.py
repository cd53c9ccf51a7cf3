"""Reading: indexes into a catalogue, shards into records, records into samples, positions into an epoch."""
