"""APPFL: ``ServerAgent`` and client agents in one process, as its serial example runs them.

``optimize_memory`` is off: by default each client collects garbage several times a round, which takes far longer than
its training.
"""

from pathlib import Path

from job import Job, job_in, mend_torchvision, run


def accuracy(targets, outputs) -> float:
    """Return the share of right answers; APPFL asks for one of the training batches."""
    return float((outputs.argmax(1) == targets).mean())


def first_model(folder: str):
    """Return the network with its first weights: what APPFL finds in a file by its name."""
    return job_in(folder).model()


def race(job: Job) -> None:
    mend_torchvision()
    from appfl.agent import ServerAgent
    from appfl.agent.sim_client import SimClientAgent
    from omegaconf import OmegaConf
    from torch.utils.data import TensorDataset

    here, folder = str(Path(__file__).resolve()), str(job.folder)
    config = OmegaConf.create({
        "client_configs": {
            "train_configs": {
                "trainer": "VanillaTrainer", "mode": "epoch", "num_local_epochs": job.epochs, "optim": "SGD",
                "optim_args": {"lr": job.learning_rate}, "loss_fn": "CrossEntropyLoss", "do_validation": False,
                "metric_path": here, "metric_name": "accuracy", "train_batch_size": job.batch,
                "train_data_shuffle": True, "device": job.device, "optimize_memory": False,
            },
            "model_configs": {"model_path": here, "model_name": "first_model", "model_kwargs": {"folder": folder}},
        },
        "server_configs": {
            "num_clients": job.devices, "num_global_epochs": job.rounds, "device": "cpu",
            "scheduler": "SyncScheduler", "optimize_memory": False,
            "scheduler_kwargs": {"num_clients": job.devices, "same_init_model": True, "optimize_memory": False},
            "aggregator": "FedAvgAggregator",
            "aggregator_kwargs": {"client_weights_mode": "sample_size", "optimize_memory": False},
            "logging_output_dirname": folder, "logging_output_filename": "server",
        },
    })  # fmt: skip
    server = ServerAgent(server_agent_config=config)
    clients = [
        SimClientAgent(
            OmegaConf.create({"train_configs": {"device": job.device}, "optimize_memory": False}),
            client_id=str(number), client_dataset=TensorDataset(*job.samples(number)),
        )
        for number in range(job.devices)
    ]  # fmt: skip
    for client in clients:
        client.load_config(server.get_client_configs())
        client.load_parameters(server.get_parameters(serial_run=True))
        server.set_sample_size(client_id=client.get_id(), sample_size=client.get_sample_size())
    job.start()
    for _ in range(job.rounds):
        answers = []
        for client in clients:
            client.train()
            local = client.get_parameters()
            local = local[0] if isinstance(local, tuple) else local
            answers.append(server.global_update(client_id=client.get_id(), local_model=local, blocking=False))
        for client, answer in zip(clients, answers, strict=True):
            found = answer.result() if hasattr(answer, "result") else answer
            client.load_parameters(found[0] if isinstance(found, tuple) else found)
        job.end_round()
    job.finish(clients[0].model, ["appfl"], "one process")


if __name__ == "__main__":
    run(race)
