"""What the scheduler side knows: nodes, jobs, their times; nothing here acts."""
