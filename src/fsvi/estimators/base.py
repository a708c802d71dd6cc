"""What the estimators share: a network on standardised inputs, trained by any method."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from fsvi.errors import InvalidInputError
from fsvi.estimators.defaults import HIDDEN, STEPS, fsvi_settings, num_held_out, reestimate_noise, widen
from fsvi.functions.contexts import Context, ShiftedRows
from fsvi.likelihoods import Likelihood
from fsvi.methods.base import Method
from fsvi.methods.registry import make_method
from fsvi.networks import mlp, table_mlp
from fsvi.training import fit
from fsvi.validation import check_count, check_fraction

_SEEDS = 2**31 - 1


class Estimator(BaseEstimator):  # type: ignore[misc]
    """A network on standardised inputs, trained by a method.

    Parameters:
        method: A name that `fsvi.make_method` knows: "fsvi", "map", "laplace", "ensemble:map", …
        module: A network to start from, which is copied, or a function (n_features, n_outputs) -> network; None makes a
            fully connected one.
        hidden: Widths of that network's hidden layers.
        context: Where methods that look beyond the data do so, in standardized units; None takes
            `fsvi.contexts.ShiftedRows()`: training rows with columns pushed away from the data.
        settings: Further arguments of the method, such as {"num_context": 50}.
        epochs: How often to go through the data, at most.
        batch_size: Examples a step.
        lr: Learning rate of Adam, which falls to almost nothing along a cosine.
        validation_fraction: Share of the data held out to say when to stop, and how large the noise is. None holds out
            a tenth, and up to a fifth of small tables. 0, or fewer than 10 examples, trains for all epochs on all data.
        patience: Epochs without a better likelihood of the held-out data after which training stops; the parameters of
            the best epoch are kept.
        num_samples: Draws of the function that make a prediction.
        random_state: Seed of the network's first parameters, of training and of prediction.

    Attributes:
        method_: The trained method.
        history_: What happened in training; for "fsvi", in training the point estimate that it starts from.
        widening_: For "fsvi", what happened when the last layer became random.
        scaler_: How inputs are standardised.
        seed_: What `random_state` gave.
        n_features_in_: Number of inputs.
        feature_names_in_: Their names, if a data frame gave any.
    """

    _activation: str = "tanh"
    """Of the network that is made where none is given."""

    def __init__(
        self,
        method: str = "fsvi",
        *,
        module: nn.Module | Callable[[int, int], nn.Module] | None = None,
        hidden: Sequence[int] = HIDDEN,
        context: Context | None = None,
        settings: Mapping[str, Any] | None = None,
        epochs: int = 300,
        batch_size: int = 128,
        lr: float = 1e-2,
        validation_fraction: float | None = None,
        patience: int = 50,
        num_samples: int = 100,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.method = method
        self.module = module
        self.hidden = hidden
        self.context = context
        self.settings = settings
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.num_samples = num_samples
        self.random_state = random_state

    def _train(self, x: NDArray[Any], y: NDArray[Any], likelihood: Likelihood, num_outputs: int) -> None:
        """Train on inputs in their own units and targets as the network is to see them."""
        self.seed_ = int(check_random_state(self.random_state).randint(_SEEDS))
        self.scaler_ = StandardScaler().fit(x)
        inputs, targets = torch.as_tensor(self.scaler_.transform(x)), torch.as_tensor(y)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed_)
            self.method_ = self._make(inputs, likelihood, num_outputs)
            held_out, kept = torch.randperm(len(x)).tensor_split([self._num_held_out(len(x))])
        rows, settings = (inputs[kept], targets[kept]), self._fit_settings()
        validation = (inputs[held_out], targets[held_out])
        more: dict[str, Any] = {"validation": validation, "patience": self.patience} if len(held_out) else {}
        self.history_ = fit(self.method_, rows, batch_size=self.batch_size, lr=self.lr, **settings, **more)
        if len(held_out):
            reestimate_noise(self.method_, *validation)
        if self.method == "fsvi":
            settings["steps"] = min(STEPS, settings.pop("epochs") * math.ceil(len(kept) / self.batch_size))
            self.method_, self.widening_ = widen(
                self.method_, rows[0], copy.deepcopy(self.context), self.settings or {}, **settings
            )

    def _fit_settings(self) -> dict[str, Any]:
        return {"epochs": self.epochs, "seed": self.seed_, "progress": False}

    def _make(self, x: Tensor, likelihood: Likelihood, num_outputs: int) -> Method:
        """The method, once its network is known to have the right outputs; for FSVI, the point estimate before it."""
        networks = self._networks(x, num_outputs)
        context = ShiftedRows() if self.context is None else copy.deepcopy(self.context)
        given = dict(self.settings or {})
        is_fsvi = self.method == "fsvi"
        settings = fsvi_settings(likelihood, num_outputs, given) if is_fsvi else copy.deepcopy(given)
        method = make_method(self.method, networks, likelihood, context=context, **settings)
        method.see(x[:2].to(method.dtype))
        if method.num_outputs != num_outputs:
            raise InvalidInputError(f"module has {method.num_outputs} outputs; the data need {num_outputs}.")
        return make_method("map", method.network, likelihood) if is_fsvi else method

    def _networks(self, x: Tensor, num_outputs: int) -> nn.Module | Callable[[], nn.Module]:
        """What `make_method` takes: the network given, or a function that makes fresh ones."""
        module = self.module
        if isinstance(module, nn.Module):
            return module
        if module is None and not len(self.hidden):
            return lambda: mlp(x.shape[1], (), num_outputs).double()
        if module is None:
            return lambda: table_mlp(x, self.hidden, num_outputs, self._activation).double()
        if not callable(module):
            raise InvalidInputError(
                f"module={module!r} must be a torch.nn.Module, a function (n_features, n_outputs) -> Module, or None."
            )
        return lambda: module(x.shape[1], num_outputs)

    def _num_held_out(self, num: int) -> int:
        fraction = self.validation_fraction
        return num_held_out(num, None if fraction is None else check_fraction("validation_fraction", fraction))

    def _predict(self, x: Any, num_samples: int, seed: int | None = None) -> Any:
        """The network's own prediction, of classes or of standardised targets."""
        check_is_fitted(self)
        x = validate_data(self, x, dtype=np.float64, order="C", reset=False)
        inputs = torch.as_tensor(self.scaler_.transform(x))
        return self.method_.predict(inputs, num_samples, self.seed_ if seed is None else seed)

    def _draws(self, x: Any, n_samples: int, random_state: Any) -> tuple[Any, Tensor, torch.Generator]:
        """A prediction, which of its draws to take for `n_samples`, and a generator for what is drawn from them.

        A method with fewer draws, such as a single network, gives each of them several times.
        """
        check_count("n_samples", n_samples)
        seed = int(check_random_state(random_state).randint(_SEEDS))
        p = self._predict(x, n_samples, seed)
        return p, torch.arange(n_samples) % len(p.samples), torch.Generator().manual_seed(seed)
