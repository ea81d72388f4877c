"""What all widgets stand on: markup, the link to the cluster, work beside the kernel."""
