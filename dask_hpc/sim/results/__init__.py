"""What a run gives: rows, series, plots."""
