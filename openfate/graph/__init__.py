"""X as a bipartite graph between rows and features, and sums along its edges."""
