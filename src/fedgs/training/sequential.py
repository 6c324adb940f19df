"""Local training one client after the other, batch by batch.

No stack, no filling up: each client's model alone, on mini-batches of their true sizes. With one thread it is slow and
simple enough to be right, the oracle that every other way must equal. With several, clients are shared out over
threads, each with one thread inside: the way of any network on processors, the same to the bit however many threads
there are.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgs.data.arrays import map_tree
from fedgs.training.client_plan import ClientPlan
from fedgs.training.clients import (
    KEYS_A_STEP,
    ClientSetup,
    ClientTraining,
    Tick,
    Trained,
    local_places,
    takes_modules,
)
from fedgs.training.dropout import generator_kept
from fedgs.training.objective import Batch, Sent
from fedgs.training.precision import gpu_precision, one_thread_each
from fedgs.training.step import descend, gradient_of


class Sequential(ClientTraining):
    """Trains clients one by one, in one thread or in several."""

    def __init__(self, setup: ClientSetup, threads: int | None = None) -> None:
        super().__init__(setup)
        self._threads = threads or os.cpu_count() or 1
        self._prepared = takes_modules(setup.network)
        self._pool: ThreadPoolExecutor | None = None  # kept, as each thread has a copy of the network

    def train(
        self, sent: Sent, plan: ClientPlan, rate: float, tick: Tick | None = None, local: Tensor | None = None
    ) -> Trained:
        """Train all participants from what was sent."""
        device, count = self.store.device, len(plan.devices)
        flats = torch.empty(count, self.layout.size, device=device)
        start = self.layout.flatten(
            {name: sent.weights[name][0] for name in self.layout.names}, torch.empty_like(flats[0])
        )
        losses = np.full(plan.sizes.shape, np.nan)
        hits = np.zeros(plan.sizes.shape)
        final = np.zeros(count)

        def train(place: int) -> None:
            flats[place] = start
            self._train_one(flats[place], sent, plan, place, rate, local, losses[:, place], hits[:, place], final)
            if tick is not None:
                tick(1 / count)

        with one_thread_each(), generator_kept(), gpu_precision(self.precision):
            if self._threads == 1 or device.type == "cuda":
                for place in range(count):
                    train(place)
            else:
                if self._pool is None:
                    self._pool = ThreadPoolExecutor(
                        self._threads, "fedgs-client", initializer=torch.set_num_threads, initargs=(1,)
                    )
                _all(self._pool, train, count)
        accuracies = None if self.objective.train_acc is None else final / plan.num_samples
        return Trained(self.layout.stacked_views(flats), losses, accuracies)

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def _train_one(
        self, flat: Tensor, sent: Sent, plan: ClientPlan, place: int, rate: float, local: Tensor | None,
        losses: NDArray[np.float64], hits: NDArray[np.float64], final: NDArray[np.float64],
    ) -> None:  # fmt: skip
        """Train one client in place."""
        layout, optimizer = self.layout, self.optimizer
        own_places, device = local_places(self.network, flat.device), int(plan.devices[place])
        if local is not None and own_places is not None:
            flat[own_places] = local[device]
        views = {name: view[None] for name, view in layout.views(flat).items()}
        trained = [view[0] for view in list(views.values())[: layout.trained]]
        start = [sent.weights[name][0] for name in layout.names[: layout.trained]]
        memory = {entry: [torch.zeros_like(weight) for weight in trained] for entry in optimizer.entries}
        steps, epoch = int(plan.steps[place]), int(plan.epoch_steps[place])
        for step in range(steps):
            batch = self._batch(plan, place, step)
            found = gradient_of(self.network, self.objective, views, layout.trained, sent, batch)
            losses[step] = float(found.losses[0])
            if self.objective.train_acc == "running":
                hits[step] = float(self.network.hits(found.outputs, batch)[0])
            gradients = [None if value is None else value[0] for value in found.values]
            descend(trained, gradients, rate, optimizer, memory, step + 1, self.clip, self.objective.pull, start)
        if self.objective.train_acc == "running":
            final[place] = hits[steps - epoch : steps].sum()
        elif self.objective.train_acc == "final":
            with torch.no_grad():
                for step in range(epoch):  # the batches of the first epoch are all the samples
                    batch = self._batch(plan, place, step)
                    found = self.objective.outputs(self.network, views, sent.memory, batch.inputs, batch.clients)
                    final[place] += float(self.network.hits(found, batch)[0])
        if local is not None and own_places is not None:
            local[device] = flat[own_places]

    def _batch(self, plan: ClientPlan, place: int, step: int) -> Batch:
        size, device = int(plan.sizes[step, place]), self.store.device
        samples = plan.samples[step, place, :size].astype(np.int64)
        key = int(plan.keys[place]) + KEYS_A_STEP * step
        if self._prepared:
            inputs, targets = self.store.batch(samples)
            augment = self.store.task.task.augment
            if augment is not None:
                inputs = augment(inputs, torch.Generator(device).manual_seed(key))
            inputs, targets = (map_tree(lambda value: value[None], tree) for tree in (inputs, targets))
        else:
            inputs, targets = self.store.pixels(torch.from_numpy(self.store.places(samples)).to(device)[None])
        number = int(self.client_ids[plan.devices[place]])
        return Batch(
            inputs,
            targets,
            torch.full((1, size), 1 / size, device=device),
            torch.full((1, size), number, device=device),
            torch.tensor([key], device="cpu" if self._prepared else device),
            full=True,
        )


def _all(pool: ThreadPoolExecutor, train: Callable[[int], None], count: int) -> None:
    """Train all; after an error, or Ctrl-C, nobody begins who has not begun."""
    futures = [pool.submit(train, place) for place in range(count)]
    try:
        for future in futures:
            future.result()
    finally:
        for future in futures:
            future.cancel()
        wait(futures)
