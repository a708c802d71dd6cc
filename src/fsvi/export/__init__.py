"""Functions of a model's inputs as one graph, in files that ONNX Runtime or torch.export run."""

from fsvi.export.draws import Functions, functions_of
from fsvi.export.files import SUFFIXES, check_path, write_graph
from fsvi.export.graph import Graph, trace

__all__ = ["SUFFIXES", "Functions", "Graph", "check_path", "functions_of", "trace", "write_graph"]
