import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fsvi
from scenarios import points


def plain(prior_variance=None):
    """A network without any randomness of its own."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 2))
    return fsvi.MAP(net, fsvi.Categorical(), prior_variance=prior_variance)


def test_history_is_the_terms_averaged_over_the_examples_seen():
    x, y = points()
    still = {"epochs": 2, "schedule": lambda done: 0.0}
    whole = plain(prior_variance=1.0)
    whole.num_data = 20
    terms = {name: value.item() for name, value in whole(x, y).items()}
    for data in ((x, y), DataLoader(TensorDataset(x, y), batch_size=8)):
        history = fsvi.fit(plain(prior_variance=1.0), data, batch_size=7, **still)
        assert history.terms.keys() == terms.keys()
        for name, value in terms.items():
            np.testing.assert_allclose(history.terms[name], [value] * 2, rtol=1e-5)
        np.testing.assert_allclose(history.loss, [sum(terms.values())] * 2, rtol=1e-5)
    dropping = DataLoader(TensorDataset(x, y), batch_size=8, drop_last=True)
    history = fsvi.fit(plain(prior_variance=1.0), dropping, **still)
    np.testing.assert_allclose(history.terms["nll"], [whole(x[:16], y[:16])["nll"].item()] * 2, rtol=1e-5)
