import torch

from fsvi.export.graph import share


def test_equal_nodes_become_one_but_numbers_of_other_types_stay_apart():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    one, two, other = (graph.call_function(torch.add, (x, value)) for value in (1, 1, 1.0))
    graph.output((graph.call_function(torch.mul, (one, two)), graph.call_function(torch.mul, (one, other))))
    share(graph)
    assert sum(node.target is torch.add for node in graph.nodes) == 2
    values = torch.fx.GraphModule({}, graph)(torch.tensor(2))
    assert [float(value) for value in values] == [9.0, 9.0]
