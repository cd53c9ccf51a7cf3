"""What readers do and wait for: counted, judged, reported."""
