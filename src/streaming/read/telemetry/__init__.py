"""What was read and waited for: counted, judged, and shown."""
