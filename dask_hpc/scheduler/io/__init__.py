"""Reading and writing by tasks: what was measured."""
