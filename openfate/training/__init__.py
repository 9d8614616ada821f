"""Algorithm 1 of the paper, one file per idea: masking, DropEdge, metrics, and the loop itself."""
