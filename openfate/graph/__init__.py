"""X as a bipartite graph between rows and features, and the two sums over its edges."""

from openfate.graph.bipartite import (
    Bipartite,
    Edges,
    features_to_cells,
    features_to_rows,
    full_precision,
    rows_to_features,
)

__all__ = [
    "Bipartite",
    "Edges",
    "features_to_cells",
    "features_to_rows",
    "full_precision",
    "rows_to_features",
]
