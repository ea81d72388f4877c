"""What tasks read and write past metered stores: by the counters that the system keeps of each thread."""
