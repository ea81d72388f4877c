"""The power corridor, as far as it is arithmetic: the program, the forecast, the curve of load."""
