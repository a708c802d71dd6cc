"""Inference methods, one file each, behind one protocol."""

from fsvi.methods.fsvi import FSVI
from fsvi.methods.map import MAP
from fsvi.methods.method import Method, load

__all__ = ["FSVI", "MAP", "Method", "load"]
