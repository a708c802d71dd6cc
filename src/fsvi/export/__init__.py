"""Trained methods as one graph, in files that ONNX Runtime or torch.export run."""

from fsvi.export.files import SUFFIXES
from fsvi.export.method import export_method

__all__ = ["SUFFIXES", "export_method"]
