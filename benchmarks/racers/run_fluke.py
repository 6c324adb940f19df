"""fluke: ``FedAVG(…).run(…)`` with the clients' data loaders given, as its API tutorial and its FEMNIST do."""

from job import Job, mend_torchvision, run


def race(job: Job) -> None:
    mend_torchvision()
    from fluke import DDict, FlukeENV
    from fluke.algorithms.fedavg import FedAVG
    from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
    from fluke.utils import FederationObserver

    class Clock(FederationObserver):
        """Notes the start of the first round and the end of each."""

        def start_round(self, round, global_model):
            if round == 1:
                job.start()

        def end_round(self, round):
            job.end_round()

    environment = FlukeENV()
    environment.set_seed(0)
    environment.set_device(job.device)
    environment.set_inmemory(True)
    environment.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    loaders = [
        FastDataLoader(*job.samples(client), num_labels=job.classes, batch_size=job.batch, shuffle=True,
                       skip_singleton=False)
        for client in range(job.devices)
    ]  # fmt: skip
    data = DummyDataContainer(loaders, [None] * job.devices, None, job.classes)
    client = {
        "batch_size": job.batch, "local_epochs": job.epochs, "loss": "CrossEntropyLoss",
        "optimizer": {"name": "SGD", "lr": job.learning_rate}, "scheduler": {"gamma": 1, "step_size": 1},
    }  # fmt: skip
    settings = DDict(client=client, server={"weighted": True}, model=job.model())
    algorithm = FedAVG(job.devices, DataSplitter(data, "iid"), settings)
    algorithm.set_callbacks(Clock())
    algorithm.run(n_rounds=job.rounds, eligible_perc=1.0)
    job.finish(algorithm.server.model, ["fluke-fl"], "one process")


if __name__ == "__main__":
    run(race)
