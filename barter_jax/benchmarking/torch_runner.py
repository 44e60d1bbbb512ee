"""Runs the PyTorch rival of one case: its training step, its evaluation step, its memory."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
import torch
import torch.nn.functional as F
from ml_collections import config_dict

from barter_jax.benchmarking.memory import DevicePeak
from barter_jax.benchmarking.plans import Plan
from barter_jax.benchmarking.runner import Batch, timed
from barter_jax.benchmarking.torch_rival import TorchTransformer, load_flax
from barter_jax.errors import UserError
from barter_jax.training import state as state_lib

OPTIMIZERS = ("adamw", "sgd")
ATTENTION = {"fused": True, "explicit": False}
# Read before any runner sets it: the number is the process's, not a runner's.
THREADS = torch.get_num_threads()
# What is particular to a first step is small beside so long a one.
LONG_STEP_SECONDS = 0.5


def check(config: config_dict.ConfigDict) -> None:
    """Refuses what the rival cannot do here.

    Raises:
      UserError: the optimizer is not among PyTorch's own, or there is no PyTorch for the device
        that JAX runs on.
    """
    if config.optimizer.name not in OPTIMIZERS:
        raise UserError(
            f"--methods: PyTorch has no {config.optimizer.name}: leave the torch methods out, or "
            f"set config.optimizer.name to one of {', '.join(OPTIMIZERS)}"
        )
    _device()


def _device() -> torch.device:
    platform = jax.devices()[0].platform
    if jax.local_device_count() > 1:
        raise UserError(
            "--methods: the torch methods use one device, and JAX sees "
            f"{jax.local_device_count()}: leave them out, or show JAX one device only"
        )
    if platform == "cpu":
        return torch.device("cpu")
    if platform == "gpu" and torch.cuda.is_available():
        return torch.device("cuda")
    raise UserError(
        f"--methods: this PyTorch cannot use the {platform} that JAX runs on: leave the torch "
        "methods out, or install a torch that can"
    )


class TorchRunner:
    """One case's torch module and optimizer; it has the starting parameters of its JAX twin.

    Its tensors have the padded counts, as those of the JAX cases. The precision of float32
    products on a GPU is JAX's default too (TF32 where the GPU has it). bfloat16 is by autocast.

    Args:
      plan: the case.
    """

    def __init__(self, plan: Plan):
        self.plan = plan
        self._device = _device()
        # What the runners before this one hold is no part of its own peak.
        self._others = torch.cuda.memory_allocated() if self._device.type == "cuda" else 0
        torch.manual_seed(plan.config.seed)
        if self._device.type == "cuda":
            torch.set_float32_matmul_precision("high")
            torch.backends.cudnn.benchmark = True
        blueprint = plan.blueprint
        self.module = TorchTransformer(
            blueprint.model, plan.physical, blueprint.image_size, blueprint.num_classes
        )
        state, _ = state_lib.initial(blueprint, plan.barter, plan.tx, plan.config.seed)
        load_flax(self.module, state.params)
        self.module.to(self._device)
        self._optimizer, self._scheduler = make_optimizer(
            self.module, plan.config.optimizer, blueprint.total_steps
        )
        self._half = blueprint.model.dtype == "bfloat16"
        self._batch: tuple[torch.Tensor, ...] = ()
        self._loss = torch.tensor(math.nan)
        self._threads = THREADS
        self.details: dict[str, Any] = {}

    def place(self, batch: Batch) -> None:
        """Puts a batch of the JAX cases on the device; parameters are there already."""
        arrays = (batch.images.transpose(0, 3, 1, 2), batch.targets, batch.labels)
        self._batch = tuple(
            torch.from_numpy(np.array(a, order="C")).to(self._device) for a in arrays
        )

    def train(self, steps: int) -> None:
        """Takes optimizer steps, and waits for the device once, at the end."""
        images, targets, _ = self._batch
        self.module.train()
        torch.set_num_threads(self._threads)
        for _ in range(steps):
            with self._autocast():
                logits = self.module(images)
            self._loss = F.cross_entropy(logits.float(), targets)
            self._optimizer.zero_grad(set_to_none=True)
            self._loss.backward()
            if self.plan.config.optimizer.clip_norm:
                torch.nn.utils.clip_grad_norm_(
                    self.module.parameters(), self.plan.config.optimizer.clip_norm
                )
            self._optimizer.step()
            self._scheduler.step()
        self._wait()

    @torch.no_grad()
    def evaluate(self, steps: int) -> None:
        """Forward pass, loss and hits of a batch; waits for the device once, at the end."""
        images, _, labels = self._batch
        self.module.eval()
        torch.set_num_threads(self._threads)
        for _ in range(steps):
            with self._autocast():
                logits = self.module(images)
            F.cross_entropy(logits.float(), labels.long(), reduction="sum")
            (logits.argmax(-1) == labels).sum()
        self._wait()

    def choose(self, steps: int) -> None:
        """Times ways to compute attention, and on a CPU numbers of threads; keeps the fastest.

        Args:
          steps: training steps to time each with; fewer where steps are long.
        """
        self._threads, tried = THREADS, {}
        for name, fused in ATTENTION.items():
            self.module.use_fused_attention(fused)
            tried[name] = self._step_seconds(steps)
        attention = min(tried, key=tried.get)
        self.module.use_fused_attention(ATTENTION[attention])
        if self._device.type == "cpu" and THREADS > 1:
            # A small model may lose more by waiting for its threads than it gains by them.
            self._threads = 1
            tried["one thread"] = self._step_seconds(steps)
            if tried["one thread"] > tried[attention]:
                self._threads = THREADS
        self.details = {
            "attention": attention,
            "threads": self._threads,
            "tried_step_ms": {name: 1e3 * seconds for name, seconds in tried.items()},
        }

    def _step_seconds(self, steps: int) -> float:
        first = timed(self.train, 1)
        if first > LONG_STEP_SECONDS:
            return min(first, timed(self.train, 1))
        return timed(self.train, steps) / steps

    def device_peak(self) -> DevicePeak | None:
        """Peak bytes of one training step by PyTorch's own count, which can be reset."""
        if self._device.type != "cuda":
            return None
        torch.cuda.reset_peak_memory_stats()
        self.train(1)
        own = torch.cuda.max_memory_allocated() - self._others
        return DevicePeak(own, True, "torch.cuda.max_memory_allocated")

    @property
    def loss(self) -> float:
        """Training loss of the last step taken."""
        return float(self._loss.detach())

    def _autocast(self):
        return torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=self._half)

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize()


def make_optimizer(
    module: torch.nn.Module, config: config_dict.ConfigDict, total_steps: int
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """The optimizer and schedule that `training.optimizer` makes of the same section."""
    kernels, others = [], []
    norms = tuple(
        name + "." for name, part in module.named_modules() if isinstance(part, torch.nn.LayerNorm)
    )
    for name, parameter in module.named_parameters():
        spared = name.endswith("bias") or name.startswith(norms)
        (others if spared and config.decay_mask == "kernels" else kernels).append(parameter)
    groups = [
        {"params": kernels, "weight_decay": config.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    if config.name == "adamw":
        made = torch.optim.AdamW(
            groups,
            lr=config.learning_rate,
            betas=(config.beta1, config.beta2),
            eps=config.epsilon,
            fused=True,
        )
    else:
        made = torch.optim.SGD(groups, lr=config.learning_rate, momentum=config.beta1, fused=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        made, lambda step: learning_rate(config, total_steps, step) / config.learning_rate
    )
    return made, scheduler


def learning_rate(config: config_dict.ConfigDict, total_steps: int, step: int) -> float:
    """`training.optimizer.learning_rate` in plain numbers."""
    warmup = round(config.warmup_fraction * total_steps)
    if step < warmup:
        start = config.start_learning_rate
        return start + (config.learning_rate - start) * step / warmup
    done = min((step - warmup) / max(total_steps - warmup, 1), 1.0)
    cosine = 0.5 * (1 + math.cos(math.pi * done))
    end = config.end_learning_rate
    return end + (config.learning_rate - end) * cosine
