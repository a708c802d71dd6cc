"""Trained methods as one graph, in files that ONNX Runtime or torch.export run."""

from fsvi.export.method import export_method

__all__ = ["export_method"]
