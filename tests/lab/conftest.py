"""Its place makes `report.folders` importable (pytest's `prepend` mode)."""
