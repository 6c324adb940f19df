"""pfl-research: ``FederatedAveraging`` on a ``SimulatedBackend``, data in memory, in one process or in several.

Several processes share the clients of a round as pfl's guide "Fast distributed simulations" says: the script is started
once a process with PFL_WORKER_ADDRESSES and PFL_WORKER_RANK. On processors each takes its share of the threads.
"""

import os
import socket
import subprocess
import sys

import numpy as np
from job import Job, run

RANK = "PFL_WORKER_RANK"


def start_workers(job: Job) -> None:
    """Start this script once a process and wait for all; when one fails, end the others."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    threads = max(1, (os.cpu_count() or 1) // job.processes)
    # pfl reads the first address alone.
    shared = {"PFL_WORKER_ADDRESSES": ",".join([f"localhost:{port}"] * job.processes), "OMP_NUM_THREADS": str(threads)}
    workers = [
        subprocess.Popen([sys.executable, __file__, str(job.folder)], env={**os.environ, **shared, RANK: str(rank)})
        for rank in range(job.processes)
    ]
    try:
        while codes := [worker.poll() for worker in workers]:
            if any(codes):
                sys.exit(1)
            if None not in codes:
                return
            for worker in workers:
                if worker.poll() is None:
                    try:
                        worker.wait(0.1)
                    except subprocess.TimeoutExpired:
                        continue
    finally:
        for worker in workers:
            worker.kill()


def race(job: Job) -> None:
    if job.processes > 1 and RANK not in os.environ:
        start_workers(job)
        return
    os.environ["PFL_PYTORCH_DEVICE"] = job.device
    import torch

    if job.processes > 1 and job.device == "cuda":
        # pfl asks for NCCL, which refuses two processes on one GPU; Gloo reduces tensors of a GPU, too.
        begin = torch.distributed.init_process_group
        torch.distributed.init_process_group = lambda backend, **options: begin(backend="gloo", **options)

    import asyncio

    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    class Network(type(job.model())):
        """The network with what pfl asks of it."""

        def loss(self, images, labels):
            self.train()
            return torch.nn.functional.cross_entropy(self(images), labels)

        def metrics(self, images, labels):
            return {}

    class Clock(TrainingProcessCallback):
        """Notes the end of each round."""

        def on_train_begin(self, *, model):
            job.start()
            return Metrics()

        def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
            job.end_round()
            return False, Metrics()

    asyncio.set_event_loop(asyncio.new_event_loop())  # pfl takes the current one, which newer Pythons do not make
    np.random.seed(0)  # noqa: NPY002  # pfl draws from numpy's global state, in all processes the same
    network = Network(job.classes)
    network.load_state_dict(job.model().state_dict())
    users = {}
    for client in range(job.devices):
        images, labels = job.samples(client)
        users[str(client)] = Dataset(raw_data=[images.to(job.device), labels.to(job.device)], user_id=str(client))
    data = FederatedDataset(
        lambda user: users[user], get_user_sampler("minimize_reuse", list(users)),
        user_id_to_weight=None if job.processes == 1 else {user: len(samples) for user, samples in users.items()},
    )  # fmt: skip
    model = PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), lr=1.0))
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=job.rounds, evaluation_frequency=job.rounds + 1, train_cohort_size=job.devices,
            val_cohort_size=None,
        ),
        backend=SimulatedBackend(data, None, postprocessors=[WeightByDatapoints()]),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=job.epochs, local_learning_rate=job.learning_rate, local_batch_size=job.batch
        ),
        callbacks=[Clock()],
    )  # fmt: skip
    if os.environ.get(RANK, "0") == "0":
        number = "one process" if job.processes == 1 else f"{job.processes} processes"
        job.finish(model.pytorch_model, ["pfl"], number)


if __name__ == "__main__":
    run(race)
