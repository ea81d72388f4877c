"""Jobs as users ask for them: sizes, constraints, batch scripts, estimates."""
