"""Several policies as one: merged, guarded."""
