import pytest
import torch

import fsvi

HEADS = [[0, 3], [1, 2, 4]]
F = torch.linspace(-2, 2, 30).reshape(2, 3, 5).sin()


def test_the_loss_is_the_cross_entropy_of_the_present_head():
    f = F.clone().requires_grad_()
    y = torch.tensor([2, 4, 1])
    loss = fsvi.MultiHead(HEADS, task=1).nll(f, y)
    local = torch.tensor([1, 2, 0])
    expected = torch.nn.functional.cross_entropy(F[..., [1, 2, 4]].flatten(0, 1), local.repeat(2))
    torch.testing.assert_close(loss, expected)
    loss.backward()
    assert (f.grad[..., [0, 3]] == 0).all() and (f.grad[..., [1, 2, 4]] != 0).all()


def test_predictions_give_other_classes_no_probability():
    likelihood = fsvi.MultiHead(HEADS)
    p = likelihood.predictive(F)
    assert (p.mean[:, [1, 2, 4]] == 0).all()
    torch.testing.assert_close(p.mean[:, [0, 3]], F[..., [0, 3]].softmax(-1).mean(0).to(p.mean))
    for value in (p.entropy(), p.expected_entropy(), p.mutual_information(), p.log_prob(torch.tensor([0, 3, 0]))):
        assert value.isfinite().all()


def test_the_fisher_information_is_that_of_the_present_head():
    root = fsvi.MultiHead(HEADS, task=1).fisher_root(F[0])
    p = F[0][:, [1, 2, 4]].softmax(-1)
    expected = p.diag_embed() - p[:, :, None] * p[:, None, :]
    found = root @ root.mT
    torch.testing.assert_close(found[:, [1, 2, 4]][:, :, [1, 2, 4]], expected)
    assert (found[:, [0, 3]] == 0).all()


@pytest.mark.parametrize("heads", [[], [[0, 1], [1, 2]], [[0], [2]], [[0, 1], []]])
def test_heads_that_are_no_partition_are_refused(heads):
    with pytest.raises(fsvi.errors.InvalidInputError, match="each class once"):
        fsvi.MultiHead(heads)
