"""Tables as people have them: read from files or frames, and turned into numbers for a network."""

from fsvi.tables.encoder import TableEncoder
from fsvi.tables.reading import read_table
from fsvi.tables.table import Table, as_table, is_mixed

__all__ = ["Table", "TableEncoder", "as_table", "is_mixed", "read_table"]
