"""Sequential function-space variational inference (Rudner, Bickford Smith, Feng, Teh, Gal; ICML 2022)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from fsvi.errors import InvalidInputError
from fsvi.functions.contexts import Context
from fsvi.functions.gaussian import FunctionGaussian
from fsvi.functions.priors import Empirical
from fsvi.inputs import Inputs
from fsvi.likelihoods import Likelihood, MultiHead
from fsvi.methods.fsvi import FSVI
from fsvi.networks.devices import moved
from fsvi.networks.network import Network
from fsvi.validation import check_count


class SFSVI(FSVI):
    """FSVI for a sequence of tasks: the posterior over functions after one task is the prior of the next.

    For task t it minimizes −1/(BM) Σ log p(y|f(x; θ)) + kl_weight · Σ_h KL(q_t(f_h(X_h)) ‖ q_{t−1}(f_h(X_h))). The sum
    is over the heads h of earlier tasks; in the first task, it has the first head and the `prior`. X_h are K points of
    the `context`, and K points of the coreset of task h: inputs of that task that were kept. With one head for all
    tasks, they are K points of the context and K of the coreset of each earlier task.

    Train it with `fsvi.fit_tasks`. With `likelihood=fsvi.MultiHead(heads)` each task has outputs of its own, otherwise
    all tasks share the outputs. A new head has no earlier posterior, so nothing holds it back while it is learned.

    A file keeps the coreset, because training on further tasks needs it: it contains training inputs.

    Args:
        net: The network, with the outputs of all tasks in its last layer; it is copied.
        likelihood: The distribution of targets given the network's outputs.
        context: Where functions are compared with the prior, besides the coreset. `fit` needs it.
        coreset: The number of training inputs that are kept per task; 0 keeps none.
        settings: Those of `FSVI`: `prior` is that of the first task, `num_context` the number of points of the context
            and of each earlier task, and N in `kl_weight` the number of examples of the present task.

    Examples:
        >>> x, y = fsvi.data.two_moons(100, noise=0.1, seed=0)
        >>> net = fsvi.networks.mlp(2, (20,), 2)
        >>> tasks = [(x[x[:, 0] < 0.5], y[x[:, 0] < 0.5]), (x[x[:, 0] >= 0.5], y[x[:, 0] >= 0.5])]
        >>> method = fsvi.SFSVI(net, fsvi.Categorical(), fsvi.contexts.Uniform(low=[-3, -3], high=[3, 3]), coreset=10)
        >>> histories = fsvi.fit_tasks(method, tasks, epochs=5, seed=0)
    """

    _takes_positions = False
    sized_by_data = ("points", "sizes")
    points: Tensor
    """The coreset: inputs of earlier tasks, task after task, (n, ...)."""
    sizes: Tensor
    """How many inputs each task has left, (tasks,)."""
    _drawn: Sequence[int] = ()
    """How many of the last points of the latest set were kept from each earlier task; the others concern all heads."""

    def __init__(
        self,
        net: nn.Module | Network,
        likelihood: Likelihood,
        context: Context | None = None,
        *,
        coreset: int = 40,
        **settings: Any,
    ) -> None:
        super().__init__(net, likelihood, context, **settings)
        self.coreset = coreset if coreset == 0 else check_count("coreset", coreset)
        self.register_buffer("points", torch.zeros(0))
        self.register_buffer("sizes", torch.zeros(0, dtype=torch.long))

    @property
    def num_tasks(self) -> int:
        """The number of tasks that have been learned, also if none of their inputs were kept."""
        return len(self.sizes)

    def end_task(self, x: Tensor, seed: int = 0) -> None:
        """Keep inputs of the task that was learned, and make the posterior the prior of the next one.

        Args:
            x: Training inputs of the task, all of them or a sample.
            seed: The seed of the choice.
        """
        if not isinstance(x, Tensor):
            raise InvalidInputError("S-FSVI keeps inputs in a coreset, so it needs inputs that are one tensor.")
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[: self.coreset]
        chosen = x.detach()[moved(order, x.device)].clone()
        self.points = torch.cat([self.points, chosen.to(self.points)]) if self.num_tasks else chosen
        self.sizes = torch.cat([self.sizes, self.sizes.new_tensor([len(chosen)])])
        prior = Empirical(self)
        prior.bind(self.network, self.linearize)
        prior.forget_source()
        self.prior = prior

    def function_kl(self, x_context: Any) -> Tensor:
        """The divergence of q(f(X)) from p(f(X)) at these points, summed over the heads of earlier tasks."""
        self._drawn = ()
        return super().function_kl(x_context)

    def _points(self, x: Inputs) -> Any:
        """K points of the context, then K points of each earlier task."""
        points = super()._points(x)
        sizes = self.sizes.tolist()
        starts = accumulate(sizes[:-1], initial=0)
        rows = [start + torch.randperm(size)[: self.num_context] for start, size in zip(starts, sizes, strict=False)]
        self._drawn = [len(each) for each in rows]
        if not sum(self._drawn):
            return points
        kept = self.points[moved(torch.cat(rows), self.points.device)]
        return torch.cat([points, self.network.arranged(kept.to(points.dtype))])

    def _divergence(self, q: FunctionGaussian, p: FunctionGaussian) -> Tensor:
        """One divergence per head, at the points that concern it."""
        if not isinstance(self.likelihood, MultiHead):
            return super()._divergence(q, p)
        heads: list[list[int]] = self.likelihood.heads[: max(1, self.num_tasks)]
        parts = zip(self._points_of_heads(q.num_points, len(heads)), heads, strict=True)
        indices = [[torch.tensor(each, device=q.mean.device) for each in part] for part in parts]
        return torch.stack([self.divergence.between(q.part(*part), p.part(*part)) for part in indices]).sum()

    def _points_of_heads(self, num_points: int, num_heads: int) -> Iterator[list[int]]:
        """The points at which each head is compared: those that concern all heads, and those of its own task."""
        end = num_points - sum(self._drawn)
        shared = list(range(end))
        for count in self._drawn or [0] * num_heads:
            start, end = end, end + count
            yield [*shared, *range(start, end)]
