"""The tasks of the paper, one file each: recipe, tables and sweep."""
