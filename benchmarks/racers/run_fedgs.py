"""fedgs: ``fedgs.run(…, algorithm="fedavg")``, with its built-in network or with the network file of the others."""

from job import Job, run

import fedgs


class Clock:
    """Notes the end of each round."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def on_begin(self, _: object) -> None:
        self.job.start()

    def on_round(self, _: object, __: object) -> None:
        self.job.end_round()


def race(job: Job) -> None:
    arrays = job.arrays
    test = (arrays["test_inputs"], arrays["test_labels"], arrays["test_clients"])
    federation = fedgs.Federation.from_arrays(
        arrays["inputs"], arrays["labels"], devices=arrays["clients"], factories=1, test=test,
        classes=[str(number) for number in range(job.classes)],
    )  # fmt: skip
    own = fedgs.classification(job.model, job.classes) if job.own_network else None
    history = fedgs.run(
        own, federation, algorithm="fedavg",
        rounds=job.rounds, batch_size=job.batch, learning_rate=job.learning_rate, device=job.device,
        eval_every=job.rounds, seed=0, callbacks=[Clock(job)],
        settings={**({} if own else {"task": {"model": job.network}}),
                  "algorithm": {"local_epochs": job.epochs, "devices_per_round": job.devices}},
    )  # fmt: skip
    # The last round ends with fedgs's own test, which the others do not make; it is no part of a round here.
    job.drop_from_last(history.timings[-1]["evaluation"])
    what = "the network file of the others" if job.own_network else "built-in network"
    job.finish(history.model, ["fedgs"], f"one process, {what}")


if __name__ == "__main__":
    run(race)
