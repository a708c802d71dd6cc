"""The training loop, and one step of it."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer

from fsvi import ranks
from fsvi.errors import InvalidInputError, NonFiniteLossError
from fsvi.likelihoods import weighted
from fsvi.methods.base import Method
from fsvi.methods.files import load_tensors
from fsvi.networks.devices import mixed_seed, seed_random
from fsvi.networks.parameters import batch_norms
from fsvi.serialization import building_from, digest
from fsvi.training.batches import Batches, Minibatch
from fsvi.training.callbacks import Callback, TrainingState, callback_name
from fsvi.training.checkpoints import Checkpoints, flatten, load_optimizer
from fsvi.training.history import History
from fsvi.training.progress import ProgressBar, is_watched
from fsvi.training.rates import Rates
from fsvi.validation import check_choice, check_positive

PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16}
_BATCH_NORM_OF_ONE = "Expected more than 1 value per channel"
_VALIDATION_SAMPLES = 16


class Stepper:
    """Makes optimizer steps: backward passes over one or more minibatches, a check, clipping, and the update.

    A plain loop needs none of it: `sum(method(x, y).values()).backward()` and `optimizer.step()` are a step. After an
    error, the method is as it was before the step. Several processes make steps together: each gives its minibatches,
    and all of them make the same update, as if the minibatches were one.

    Args:
        method: A method in training mode; its layers must not be replaced afterwards.
        optimizer: The optimizer of its parameters.
        clip_norm: The largest norm of the gradient; larger gradients are scaled down to it. The members of an ensemble
            are clipped one by one. None does not clip.
        precision: "bf16" or "fp16" computes the network in that type where torch considers it safe (autocast);
            parameters, divergences and updates keep their own. None computes everything in the network's type.
            "fp16" multiplies the loss by a factor that adapts itself, and skips a step whose gradient overflows.
    """

    def __init__(
        self, method: Method, optimizer: Optimizer, *, clip_norm: float | None = None, precision: str | None = None
    ) -> None:
        self.method, self.optimizer = method, optimizer
        self.clip_norm = None if clip_norm is None else check_positive("clip_norm", clip_norm)
        self.precision = None if precision is None else check_choice("precision", precision, PRECISIONS)
        self.scaler = torch.amp.GradScaler(method.device.type, enabled=precision == "fp16")
        dtype = None if precision is None else PRECISIONS[precision]
        self._autocast = torch.autocast(method.device.type, dtype=dtype) if dtype else nullcontext()
        self._statistics = [buffer for layer in batch_norms(method) for buffer in layer.buffers(recurse=False)]
        self._learners = method.learners()
        self._learned = [[p for p in learner.parameters() if p.requires_grad] for learner in self._learners]
        self._size = ranks.size()
        self._together = None if self._size == 1 else _together(method)

    def __call__(self, batches: Sequence[Any], epoch: int = 1, observed: float | None = None) -> dict[str, float]:
        """One step on one or more minibatches, which count by their numbers of observed targets.

        Args:
            batches: The minibatches: inputs and targets, validated by `method.check_batch`, and perhaps weights.
            epoch: The number of the epoch, for error messages.
            observed: The number of observed targets in the minibatches of all processes; None counts them.

        Returns:
            The terms of the loss by name, averaged over the minibatches; empty without any observed target.
        """
        if observed is None:
            count = self.method.likelihood.num_observed
            given = [Minibatch(*batch)._replace(observed=int(count(batch[1]))) for batch in batches]
            observed = ranks.total(sum(batch.observed or 0 for batch in given))
            batches = [batch for batch in given if batch.observed] or given[:1]  # one without targets takes part
        if not observed:
            return {}
        self.optimizer.zero_grad(set_to_none=True)
        before = [buffer.clone() for buffer in self._statistics]
        try:
            terms = self._backward(batches, observed)
            if self.scaler.is_enabled():
                self.scaler.unscale_(self.optimizer)
            norms = []
            for learned in self._learned:
                norms.append(get_total_norm([p.grad for p in learned if p.grad is not None]))
            values = torch.stack([*terms.values(), *norms]).tolist()  # the only time that a step waits for the device
            read = dict(zip(terms, values, strict=False))
            overflows = not all(map(math.isfinite, values)) and self._find_problem(read, epoch)
        except BaseException:  # nothing but the statistics of BatchNorm has changed
            for buffer, value in zip(self._statistics, before, strict=True):
                buffer.copy_(value)
            raise
        if not overflows:
            if self.clip_norm is not None:
                for learned, norm in zip(self._learned, norms, strict=True):
                    clip_grads_with_norm_(learned, self.clip_norm, norm)
            self.optimizer.step()
            for learner in self._learners:
                learner.after_step()
        if self.scaler.is_enabled():
            self.scaler.update()
        return read

    def _backward(self, batches: Sequence[Minibatch], observed: float) -> dict[str, Tensor]:
        """Add up the gradients of all minibatches; the terms, averaged over the minibatches of all processes."""
        means: dict[str, Tensor] = {}
        for number, batch in enumerate(batches, start=1):
            waits = self._together is not None and number < len(batches)
            share = self._size * (batch.observed or 0) / observed  # processes average their gradients
            with self._together.no_sync() if self._together and waits else nullcontext():
                terms = self._forward(batch)
                self.scaler.scale(share * torch.stack(list(terms.values())).sum()).backward()
            for name, term in terms.items():
                means[name] = means.get(name, 0.0) + share * term.detach()
        if self._together is not None:
            ranks.all_sum(list(means.values()))
            means = {name: mean / self._size for name, mean in means.items()}
        return means

    def _forward(self, batch: Minibatch) -> dict[str, Tensor]:
        terms = self.method.forward if self._together is None else self._together
        weights = nullcontext() if batch.weights is None else weighted(self.method, batch.weights)
        try:
            with weights, self._autocast:
                return terms(batch.x, batch.y)
        except ValueError as error:
            if len(batch.y) == 1 and str(error).startswith(_BATCH_NORM_OF_ONE):
                raise InvalidInputError(
                    "BatchNorm cannot be trained on a batch of one example: use a batch_size of at least 2."
                ) from error
            raise

    def _find_problem(self, terms: Mapping[str, float], epoch: int) -> bool:
        """Refuse a step that would spoil the parameters; True if the gradient merely overflows in fp16."""
        wrong = [f"{name} term of the loss became {v}" for name, v in terms.items() if not math.isfinite(v)]
        if not wrong and self.scaler.is_enabled() and self.scaler.get_scale() > 1:
            return True
        wrong = wrong or ["gradient of the loss became NaN or infinite"]
        rate = self.optimizer.param_groups[0]["lr"]
        raise NonFiniteLossError(
            f"the {wrong[0]} in epoch {epoch}: lower the learning rate (now {rate:.3g}), or check the data's scale; no "
            "step was made."
        )


def _together(method: Method) -> DistributedDataParallel:
    """The method with gradients that are averaged over processes; it starts as on the first process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of torch 2.13 about an argument that earlier ones need
        return DistributedDataParallel(method, broadcast_buffers=False, find_unused_parameters=True)


@dataclass
class Run:
    """The state of one call of `fit`.

    Random numbers depend on the seed, the epoch and the process, so a resumed run draws the same ones.
    """

    method: Method
    batches: Batches
    validation: Batches | None
    stepper: Stepper
    rates: Rates
    epochs: int
    patience: int | None
    seed: int
    accumulate: int
    callbacks: list[Callback]
    history: History = field(default_factory=History)
    best: dict[str, Tensor] | None = None

    def __post_init__(self) -> None:
        sources = [self.batches] if self.validation is None else [self.batches, self.validation]
        self.generators = [generator for source in sources for generator in source.generators]
        self.steps_per_epoch = math.ceil(self.batches.num_batches / self.accumulate)
        self.state = TrainingState(self.method, self.stepper.optimizer, self.history, self.epochs)
        self._device = self.method.device
        self._rank, self._ranks = ranks.rank(), ranks.size()
        self._total = ranks.total if ranks.size() > 1 else float
        self._called = [callback for callback in self.callbacks if self._rank == 0 or callback.every_process]

    def train(self, progress: bool | None, checkpoints: Checkpoints | None, settings: dict[str, Any]) -> History:
        """Train to the end. The method is ready to predict afterwards, even after an error."""
        if ranks.rank() == 0 and (is_watched() if progress is None else progress):
            self._called.append(ProgressBar())
        self.method.train()
        try:
            for callback in self._called:
                callback.on_train_begin(self.state)
            while not self._is_done():
                self._epoch()
                if checkpoints is not None and (checkpoints.is_due or self._is_done()):
                    checkpoints.write(self._captured(), settings)
            if self.best is not None:
                load_tensors(self.method, self.best)
            ranks.check_same({"parameters": digest(self.method.state_dict()) if ranks.size() > 1 else ""})
            self._seed("finish")
            for learner in self.method.learners():
                learner.finish(self._again)
        finally:
            self.method.eval()
            for callback in self._called:
                callback.on_train_end(self.state)
        return self.history

    def _epoch(self) -> None:
        started, totals, seen = time.perf_counter(), dict[str, float](), 0.0
        learners, before = self.method.learners(), len(self.history.loss)
        self._seed("noise")
        for step, (batches, observed) in enumerate(self._steps(), start=1):
            done = (before + min(1.0, step / self.steps_per_epoch)) / self.epochs
            for learner in learners:
                learner.progress = done
            self.state.terms = self.stepper(batches, before + 1, observed)
            self.rates.step(done)
            self.state.step += 1
            for callback in self._called:
                callback.on_step_end(self.state)
            for name, value in self.state.terms.items():
                totals[name] = totals.get(name, 0.0) + value * observed
            seen += observed
        if not seen:
            raise InvalidInputError("no target is present in an epoch of the data: at least one is needed.")
        if self._ranks > 1:
            self._agree()
        for learner in learners:
            learner.after_epoch(self._again)
        for name, total in totals.items():
            self.history.terms.setdefault(name, []).append(total / seen)
        self.history.loss.append(sum(totals.values()) / seen)
        if self.validation is not None:
            self._validate(self.validation)
        self.rates.after_epoch(-self.history.validation[-1] if self.history.validation else self.history.loss[-1])
        self.history.seconds += time.perf_counter() - started
        self.state.epoch = before + 1
        for callback in self._called:
            callback.on_epoch_end(self.state)
        if self._ranks > 1:
            self.state.stopped = ranks.from_first(self.state.stopped)

    def _steps(self) -> Iterator[tuple[list[Minibatch], float]]:
        """The minibatches of each step, and the number of targets in those of all processes.

        Minibatches without a target are left out. A process that has no more takes part with one that does not count.
        """
        batches = self._pass("order")
        spare: list[Minibatch] = []
        while True:
            step = list(islice(batches, self.accumulate))
            observed = self._total(sum([batch.observed or 0 for batch in step]))
            if not observed:
                break
            if not (step or spare):
                raise InvalidInputError(f"process {ranks.rank()} has no data to train on: start fewer processes.")
            yield step or spare, observed
            spare = [step[0]._replace(observed=0)] if step else spare

    def _agree(self) -> None:
        """Average the statistics of BatchNorm layers over processes, which must have seen their data in one order."""
        if not self.batches.shards_itself:
            ranks.check_same({"the order of its data": self.batches.checksum})
        layers = batch_norms(self.method)
        buffers = [b for layer in layers for b in layer.buffers(recurse=False) if b.is_floating_point()]
        ranks.all_sum(buffers)
        for buffer in buffers:
            buffer.div_(ranks.size())

    def _again(self) -> Iterator[tuple[Any, Tensor]]:
        """This process's share of the training data once more."""
        return ((batch.x, batch.y) for batch in self._pass("again"))

    def _pass(self, purpose: str) -> Iterator[Minibatch]:
        """The minibatches with targets, and how many these are; their order depends on the purpose and the epoch."""
        for batch in self.batches.one_pass(mixed_seed(self.seed, purpose, len(self.history.loss))):
            observed = int(self.method.likelihood.num_observed(batch.y))
            if observed:
                yield batch._replace(observed=observed)

    def _seed(self, purpose: str) -> None:
        seed_random(mixed_seed(self.seed, purpose, len(self.history.loss), self._rank), self._device)

    def _validate(self, validation: Batches) -> None:
        total = num = 0.0
        for x, y, weights, _ in validation.ordered():
            try:
                logs = self.method.predict(x, _VALIDATION_SAMPLES).log_prob(y).double()
            except InvalidInputError as error:
                raise InvalidInputError(f"validation: {error}") from error
            total += float((logs if weights is None else logs * weights.to(logs)).sum())
            observed = self.method.likelihood.observed(y)
            num += logs.numel() if observed is None else int(observed.sum())
        counted = ranks.total(num)
        if not counted:
            raise InvalidInputError("no target of the validation data is present: at least one is needed.")
        value = ranks.total(total) / counted
        if math.isnan(value):
            raise NonFiniteLossError(
                f"the validation log-likelihood became nan in epoch {self.history.epochs}: lower the learning rate."
            )
        best = self.history.best_validation
        self.history.validation.append(value)
        if best is None or value > best:
            self.history.best_epoch = self.history.epochs
            copied = {name: tensor.detach().clone() for name, tensor in self.method.state_dict().items()}
            self.best = None if self.patience is None else copied

    def _is_done(self) -> bool:
        best = self.history.best_epoch
        waited = self.patience is not None and best is not None and len(self.history.loss) - best >= self.patience
        return waited or self.state.stopped or len(self.history.loss) >= self.epochs

    # Checkpoints ----------------------------------------------------------------------------------------------------

    def settings(self) -> dict[str, Any]:
        """Everything that must not change between a checkpoint and its continuation, or between processes."""
        config, held_out, optimizer = self.method.config(), self.validation, self.stepper.optimizer
        groups = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
        return {
            **config["settings"],
            "method": config["class"],
            "parameters": self.method.network.architecture(),
            "num_data": self.batches.num_data,
            "data": self.batches.fingerprint,
            "context_data": [learner._fingerprint() for learner in self.method.learners()],
            "validation": None if held_out is None else (held_out.num_examples, held_out.fingerprint),
            "optimizer": {"class": type(optimizer).__name__, "groups": groups},
            "schedule": self.rates.settings,
            "epochs": self.epochs,
            "patience": self.patience,
            "seed": self.seed,
            "clip_norm": self.stepper.clip_norm,
            "precision": self.stepper.precision,
            "accumulate": self.accumulate,
            "callbacks": [callback_name(callback) for callback in self.callbacks],
            "device": self.method.device.type,
        }

    def _captured(self) -> dict[str, Any]:
        return {
            "method": self.method.state_dict(),
            "optimizer": self.stepper.optimizer.state_dict(),
            "generators": [generator.get_state() for generator in self.generators],
            "history": asdict(self.history),
            "best": self.best,
            "step": self.state.step,
            "stopped": self.state.stopped,
            "rates": self.rates.state(),
            "scaler": self.stepper.scaler.state_dict(),
            "callbacks": [callback.state_dict() for callback in self.callbacks],
            "run": ranks.run_name(),
        }

    def resume(self, state: dict[str, Any] | None, path: Any, is_asked: bool) -> None:
        """Continue from a checkpoint; `is_asked` unless only torchrun, which has restarted this run, wants it."""
        if state is None:
            return
        if not is_asked and state["run"] != ranks.run_name():
            raise InvalidInputError(f"{path} exists: pass resume=True to continue it, or choose another folder.")
        with building_from(path):
            load_tensors(self.method, state["method"])
            load_optimizer(self.stepper.optimizer, state["optimizer"])
            for generator, random in zip(self.generators, state["generators"], strict=True):
                generator.set_state(random)
            self.history = self.state.history = History(**state["history"])
            self.best, self.state.epoch = state["best"], self.history.epochs
            self.state.step, self.state.stopped = state["step"], state["stopped"]
            self.rates.load_state(state["rates"])
            self.stepper.scaler.load_state_dict(state["scaler"])
            for callback, own in zip(self.callbacks, state["callbacks"], strict=True):
                callback.load_state_dict(own)

    def check_processes(self, y: Tensor, settings: dict[str, Any]) -> None:
        """Refuse processes that have other data or settings than the first one."""
        if ranks.size() > 1:
            states = [digest({"": generator.get_state()}) for generator in self.generators]
            data = {"targets": digest({"y": y}), "num_examples": self.batches.num_examples, "generators": states}
            ranks.check_same(flatten({**settings, **data}))
