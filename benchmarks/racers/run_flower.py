"""Flower: the message API (``ServerApp``, ``ClientApp``, ``FedAvg``) on the Simulation Runtime with its Ray backend.

The local training is the loop of Flower's PyTorch quickstart, with the samples cut from tensors that each worker keeps
in memory in place of a DataLoader, which would be slower.
"""

import os

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from job import Job, job_in, run, shuffled


def race(job: Job) -> None:
    folder = str(job.folder)
    client_app, server_app = ClientApp(), ServerApp()

    @client_app.train()
    def train(message: Message, context: Context) -> Message:
        job = job_in(folder)
        client = int(context.node_config["partition-id"])
        model = job.model()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        model.to(job.device).train()
        images, labels = (tensor.to(job.device) for tensor in job.samples(client))
        optimizer = torch.optim.SGD(model.parameters(), lr=job.learning_rate)
        for _ in range(job.epochs):
            for inputs, targets in shuffled(images, labels, job.batch):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(inputs), targets).backward()
                optimizer.step()
        content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(labels)})}
        return Message(content=RecordDict(content), reply_to=message)

    model = job.model()

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=job.devices,
                          min_available_nodes=job.devices)  # fmt: skip

        def clock(number: int, _: ArrayRecord) -> None:
            """Notes the start and the end of each round: it stands where a test of the model would."""
            job.end_round() if number else job.start()

        result = strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=job.rounds, evaluate_fn=clock)
        model.load_state_dict(result.arrays.to_torch_state_dict())

    resources = {"num_cpus": 1, "num_gpus": 0.0 if job.device == "cpu" else 1 / job.processes}
    run_simulation(server_app, client_app, num_supernodes=job.devices, backend_config={"client_resources": resources})
    job.finish(model, ["flwr", "ray"], f"Ray, {job.processes} workers")


if __name__ == "__main__":
    run(race)
