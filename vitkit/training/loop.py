"""The training loop. A run killed anywhere resumes with the same result."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vitkit.data.draws import Draw, bits
from vitkit.data.loader import Batch
from vitkit.errors import InputError
from vitkit.training import checkpoints
from vitkit.training.build import RunParts
from vitkit.training.config import TrainConfig
from vitkit.training.distributed import gradients_stay
from vitkit.training.log import Totals
from vitkit.training.optimizers import clip_gradients, make_memory, memory_by_name, set_learning_rate
from vitkit.training.results import Results
from vitkit.training.stop import listening
from vitkit.world import World


def fit(config: TrainConfig, parts: RunParts, micro_batch: int, results: Results, world: World) -> bool:
    """Train to the end and return True, or return False after a stop request."""
    periods, totals = parts.periods, Totals(parts.objective.metric_names, world)
    start = resume(parts, totals, results)
    with listening() as stop:
        for step, batch in enumerate(parts.loader.steps(start, periods.total), start):
            done = step + 1
            set_learning_rate(parts.optimizer, parts.schedule(step))
            totals.add(done, train_step(config, parts, batch, step, micro_batch, world))
            results.stepped(done)
            is_last = done == periods.total
            if done % periods.log == 0 or is_last:
                require_finite(totals)
                results.log(done, totals)
            if done % periods.evaluate == 0 or is_last:
                require_finite(totals)
                results.evaluate(done)
            if done % periods.frozen == 0 or is_last:
                results.measure_features(done)
            stopped = agree(parts, bool(stop), world)
            if done % periods.checkpoint == 0 or is_last or stopped:
                require_finite(totals)
                save(config, parts, totals, results, done)
            if stopped and not is_last:
                return False
    return True


def agree(parts: RunParts, stop: bool, world: World) -> bool:
    """Return whether any process was asked to stop; let all processes check the unreadable images found by any."""
    is_stopped, has_bad = world.sum(torch.tensor([float(stop), float(len(parts.loader.new_bad))])).tolist()
    if has_bad:
        parts.loader.share_bad(world)
    return bool(is_stopped)


def train_step(
    config: TrainConfig, parts: RunParts, batch: Batch, step: int, micro_batch: int, world: World
) -> dict[str, Tensor]:
    """Update the weights with one batch; return its metrics, on the device."""
    count, values = parts.loader.count, dict[str, Tensor]()
    for start in range(0, count, micro_batch):
        part = {name: tensor[start : start + micro_batch] for name, tensor in batch.items()}
        positions = step * config.batch_size + parts.loader.first + start + np.arange(micro_batch)
        seed_model(config.seed, int(positions[0]), world.device)
        part = parts.objective.prepare(part, Draw(config.seed, step, positions, "objective"))
        with gradients_stay(parts.forward, parts.model, held=start + micro_batch < count):
            found = parts.passes(part, micro_batch / count)
        for name, value in found.items():
            share = value * (micro_batch / count)
            values[name] = values[name] + share if name in values else share
    values["gradient_norm"] = clip_gradients(parts.optimizer, config.optimizer.clip_norm)
    parts.optimizer.step()
    parts.optimizer.zero_grad(set_to_none=True)
    if parts.average:
        parts.average.update()
    return values


def seed_model(seed: int, position: int, device: torch.device) -> None:
    """Make dropout and stochastic depth a function of the seed and the global position in the run."""
    number = int(bits(seed, "model", np.array([position]))[0, 0]) >> 1
    torch.default_generator.manual_seed(number)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(number)


def require_finite(totals: Totals) -> None:
    """Stop a run whose loss or gradient is not finite, before its weights are saved."""
    if (step := totals.bad_step()) is not None:
        raise InputError(
            f"loss or gradient is not finite at step {step}; checkpoints from before it are kept. "
            "Lower optimizer.learning_rate, set optimizer.clip_norm=1, or lengthen schedule.warmup"
        )


def resume(parts: RunParts, totals: Totals, results: Results) -> int:
    """Restore the state from the newest intact checkpoint, if there is one; return the number of steps done."""
    found = checkpoints.latest(results.path / "checkpoints", results.listener.note)
    if found:
        make_memory(parts.optimizer)
        found.load(state_tensors(parts, totals))
    results.start(found.step if found else 0, found.state if found else {})
    return found.step if found else 0


def state_tensors(parts: RunParts, totals: Totals) -> dict[str, object]:
    """Return every tensor of a checkpoint by name; they share memory with the run's."""
    return {
        "objective": dict(parts.objective.state_dict()),
        "optimizer": memory_by_name(parts.optimizer, parts.objective),
        "average": parts.average.state_dict() if parts.average else {},
        "totals": {"sums": totals.sums},
    }


def save(config: TrainConfig, parts: RunParts, totals: Totals, results: Results, done: int) -> None:
    """Write a checkpoint."""
    totals.share()
    folder = results.path / "checkpoints"
    checkpoints.save(folder, done, state_tensors(parts, totals), results.state(), config.keep_checkpoints)
    results.saved(done)
