"""What clients can ask of the runtime, method by method."""
