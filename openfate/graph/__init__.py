"""X as a bipartite graph between rows and features, and sums along its edges."""

from openfate.graph.aggregate import features_to_rows, rows_to_features
from openfate.graph.bipartite import Bipartite, Edges

__all__ = ["Bipartite", "Edges", "features_to_rows", "rows_to_features"]
