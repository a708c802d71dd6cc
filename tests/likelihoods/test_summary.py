import pytest
import torch

import fsvi
from likelihood_cases import KINDS, N, made

every_kind = pytest.mark.parametrize("kind", KINDS)


@every_kind
def test_a_summary_has_the_same_numbers(kind):
    p = made(kind)
    s = p.summary()
    assert torch.equal(s.mean, p.mean) and torch.equal(s.variance, p.variance) and torch.equal(s.score, p.score)
    assert torch.equal(s.function_variance, p.function_variance)
    assert (len(s), s.is_numeric) == (N, p.is_numeric) and s.summary() is s
    if not p.is_numeric:
        for name in ("entropy", "expected_entropy", "mutual_information", "labels"):
            assert torch.equal(getattr(s, name)(), getattr(p, name)())
    assert all(values.shape == (N,) for values in s.columns().values())


@every_kind
def test_summaries_of_parts_are_joined(kind):
    p = made(kind)
    joined = fsvi.likelihoods.concatenate([p[:2].summary(), p[2:].summary()])
    torch.testing.assert_close(joined.mean, p.mean)
    torch.testing.assert_close(joined.score, p.score)
    assert torch.equal(p.summary()[[3, 0]].mean, p.mean[[3, 0]]) and len(p.summary()[2]) == 1
    assert p.summary().to(torch.float32).mean.dtype == torch.float32
