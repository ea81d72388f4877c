"""What a host draws: sensors, their figures integrated and stamped once a host, and split over workers."""
