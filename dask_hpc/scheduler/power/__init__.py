"""The power corridor on a live scheduler: what is drawn, what it comes to, and how it is kept."""
