"""Programs that keep state between steps, and are resized while they run."""
