"""All that touches the internals of `distributed`, with the check that they are as expected."""
