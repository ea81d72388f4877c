"""The discrete-event engine."""
