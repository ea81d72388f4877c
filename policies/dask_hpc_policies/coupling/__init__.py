"""What producers and consumers of a flow agree on, and which of its steps go on."""
