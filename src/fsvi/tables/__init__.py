"""Tables as people have them: read from files or frames, and turned into numbers for a network."""

from fsvi.tables.columns import CategoryColumn, Column, DateColumn, NumberColumn
from fsvi.tables.encoder import TableEncoder
from fsvi.tables.reading import TableFile, column_names, read_chunks, read_table
from fsvi.tables.table import Table, as_table, is_mixed

__all__ = [
    "CategoryColumn",
    "Column",
    "DateColumn",
    "NumberColumn",
    "Table",
    "TableEncoder",
    "TableFile",
    "as_table",
    "column_names",
    "is_mixed",
    "read_chunks",
    "read_table",
]
