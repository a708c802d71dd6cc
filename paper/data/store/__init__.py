"""Data files: the catalog, where they are, how they are checked, downloaded and loaded."""
