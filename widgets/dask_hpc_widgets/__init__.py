"""Home of the Jupyter panel; exports nothing today."""
