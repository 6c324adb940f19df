"""The settings of an experiment as frozen, validated sections; :mod:`fedgs.config` reads them from files.

Names are words; the paper's symbol stands beside each (Table I and section VII-A give the defaults).
"""

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from fedgs.errors import AlgorithmError, ConfigError, SolverError, suggestion
from fedgs.network.settings import ClockSettings, PlanSettings
from fedgs.section import Section


class FederationSettings(Section):
    """Who takes part."""

    devices: int = Field(350, ge=1, description="all devices of the park (K)")
    factories: int = Field(10, ge=1, description="factories, each with one base station (M)")

    @property
    def devices_per_factory(self) -> int:
        """Devices of the smallest factory when they are dealt out evenly (K^m)."""
        return self.devices // self.factories

    @model_validator(mode="after")
    def _enough_devices(self) -> Self:
        if self.factories > self.devices:
            raise InvalidCombinationError(
                "factories",
                f"is more than devices={self.devices}, so some would be empty; lower it or raise federation.devices",
            )
        return self


class CoverageSettings(Section):
    """Virtual queues that give every device its fair share of turns (fedgs.simulation.selection_plan)."""

    weight: float = Field(
        0.0, ge=0, le=1e20, description="V, what a turn behind is worth in typical batches; 0: off; a good one: 0.3"
    )
    share: Literal["data", "turns", "fresh"] = Field(
        "data", description="a device's fair share is by its data, equal for all, or by what is unused in its stream"
    )


COVERAGE_WEIGHT = 0.3
"""V of the preset ``coverage``; benchmarks/selection_coverage.py shows why."""


class SelectionSettings(Section):
    """Which devices a base station takes in each iteration."""

    solver: str = Field("gbp-cs", description="a name in fedgs.selection.SOLVERS, 'auto', or package.module:name")
    options: dict[str, Any] = Field(default_factory=dict, description="of the solver, such as starts or budget")
    pick: int = Field(10, ge=1, description="devices selected per factory and iteration (L)")
    coverage: CoverageSettings = CoverageSettings()
    presample: int = Field(
        default_factory=lambda given: _presample(given),
        ge=0,
        validate_default=True,
        description="of these, how many are drawn at random beforehand (L_rnd); not given: a fifth of pick, as in the "
        "paper, and none with coverage or random-by-data",
    )
    cap: bool = Field(False, description="a factory with fewer than pick devices takes all it has")
    start: Literal["mpinv", "zero", "random"] = Field("mpinv", description="first point of gbp-cs")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        # Imported here, because it loads the compiler, which settings alone do not need.
        from fedgs.selection.solve import SOLVERS, look_up

        own = ":" in self.solver  # what is imported is looked at when it is
        if self.solver != "auto" and not own and self.solver not in SOLVERS:
            raise InvalidCombinationError("solver", f"is not a solver; {suggestion(self.solver, [*SOLVERS, 'auto'])}")
        if self.options and not own:
            if self.solver == "auto":
                raise InvalidCombinationError("options", "are of one solver; name it instead of solver='auto'")
            try:
                look_up(self.solver, self.options)
            except SolverError as error:
                raise InvalidCombinationError("options", f"do not fit: {error}") from None
        if self.coverage.weight and self.solver != "auto" and not own and not SOLVERS[self.solver].bonus:
            raise InvalidCombinationError(
                "coverage.weight",
                f"is for solvers that take a bonus, which solver={self.solver!r} does not; set it to 0",
            )
        if self.presample > self.pick:
            raise InvalidCombinationError(
                "presample", f"is more than pick={self.pick}, of which it is a part; lower it"
            )
        return self


def _presample(given: Mapping[str, Any]) -> int:
    """L_rnd where none is given; ``given`` holds the settings before it, those that are possible."""
    if given.get("solver") == "random-by-data" or given.get("coverage", CoverageSettings()).weight:
        return 0
    return round(int(given.get("pick", 10)) / 5)


class ScheduleSettings(Section):
    """How the learning rate moves; all times are in rounds."""

    kind: Literal["constant", "step", "cosine"] = Field("constant", description="the paper: constant")
    warmup: float = Field(0.0, ge=0, description="rounds over which the rate rises from 0 in a straight line")
    every: int = Field(100, ge=1, description="step: rounds between two cuts")
    factor: float = Field(0.5, gt=0, le=1, description="step: what a cut multiplies the rate by")
    floor: float = Field(0.0, ge=0, le=1, description="cosine: the last rate as a share of the first")


class TaskSettings(Section):
    """What is learnt (fedgs.Task); names with a colon, package.module:name, are imported."""

    model: str = Field("paper", description="a built-in network, or package.module:name of a network or what makes one")
    options: dict[str, Any] = Field(default_factory=dict, description="keyword arguments of the network")
    loss: str = Field("cross_entropy", description="cross_entropy, mse, l1, huber, bce, or package.module:name")
    metrics: list[str] | None = Field(
        None, description="accuracy, mae, rmse, … or package.module:name; none: the usual"
    )
    score: str | None = Field(None, description="the metric that counts, or loss; none: the first")
    mode: Literal["max", "min"] | None = Field(None, description="whether a higher score is better, or a lower one")
    balance: str | None = Field(None, description="package.module:name of f(targets) → bins; none: the class")
    bins: int | None = Field(None, ge=1, description="bins that selection balances; none: as many as occur")
    prepare: str | None = Field(None, description="package.module:name of f(stored inputs) → network inputs")
    augment: str | None = Field(None, description="package.module:name of f(inputs, generator) → inputs, in training")
    features: str | None = Field(None, description="the submodule whose output FedFusion fuses")
    head: str | None = Field(None, description="the last layer, dense with a bias a class")
    keep_local: list[str] = Field(default_factory=list, description="patterns of weights that stay on the devices")


class TrainingSettings(Section):
    """How the model is trained."""

    rounds: int = Field(500, ge=0, description="external synchronisations (R)")
    iterations: int = Field(50, ge=1, description="internal synchronisations in a round (T)")
    batch_size: int = Field(32, ge=1, description="samples of a mini-batch (n)")
    learning_rate: float = Field(0.01, gt=0, le=1e30, description="of one SGD step (η)")
    optimizer: Literal["sgd", "momentum", "adam", "adamw"] = Field(
        "sgd", description="of the stations, or of the clients of a baseline; the paper: sgd"
    )
    momentum: float = Field(0.0, ge=0, lt=1, description="of sgd (0: none, the paper) and of momentum (0: 0.9)")
    betas: list[float] = Field([0.9, 0.999], min_length=2, max_length=2, description="of adam and adamw (β₁, β₂)")
    epsilon: float = Field(1e-8, gt=0, description="of adam and adamw (ε)")
    weight_decay: float = Field(0.0, ge=0, description="λ, of any optimiser")
    clip: float | None = Field(
        None, gt=0, description="greatest length of a mean gradient, of a station or a client; none: any"
    )
    calibration: float = Field(
        0.0,
        ge=0,
        le=10,
        description="how far a station's own class mix is taken out of its loss (τ); 0: off, 1: wholly",
    )
    schedule: ScheduleSettings = ScheduleSettings()
    engine: Literal["auto", "fused", "clients", "per-device", "graph", "stacked"] = Field(
        "auto",
        description="fused: one step on the union batch; clients: every device's own step, side by side; per-device: "
        "the slow oracle; graph, stacked: fused, for GPUs",
    )
    precision: Literal["float32", "tf32", "bfloat16"] = Field(
        "tf32", description="of matrix products on a GPU; processors always compute in float32"
    )


class AlgorithmSettings(Section):
    """FedGS, or one of the baselines it is compared with."""

    name: str = Field("fedgs", description="fedgs, a baseline (fedgs baselines), or package.module:name of your own")
    options: dict[str, Any] = Field(default_factory=dict, description="of a baseline, or of the objective")
    objective: str | None = Field(
        None,
        description="fedgs: the local objective of a baseline (fedprox, fedmmd) or package.module:name; none: the loss",
    )
    kind: Literal["fedgs", "baseline"] | None = Field(
        None, description="how an algorithm of your own runs its rounds; none: as it says itself"
    )
    devices_per_round: int | None = Field(None, ge=1, description="of a baseline; none: factories × pick (M·L)")
    local_epochs: int = Field(5, ge=1, description="passes over its own data a device makes in a round of a baseline")
    learning_rate: float | None = Field(
        None, gt=0, description="of a baseline that has no client_lr of its own; none: training.learning_rate"
    )

    @property
    def is_baseline(self) -> bool:
        """Whether clients talk to one server directly, without base stations."""
        return self.kind == "baseline" if self.kind is not None else self.name != "fedgs"

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.name == "fedgs":
            wrong = {"options": self.options and not self.objective, "devices_per_round": self.devices_per_round}
            for key in (key for key, given in wrong.items() if given):
                raise InvalidCombinationError(key, "has no meaning with algorithm.name='fedgs'; remove it")
        elif self.objective is not None:
            raise InvalidCombinationError(
                "objective", "is for algorithm.name='fedgs'; a baseline has an objective of its own"
            )
        for key, name in (("name", self.name), ("objective", self.objective)):
            if (
                name is None or (key, name) == ("name", "fedgs") or ":" in name
            ):  # what is imported is looked at when it is
                continue
            # Imported here, because it loads torch, which settings alone do not need.
            from fedgs.algorithms.baselines import BASELINES, make_baseline
            from fedgs.algorithms.fedgs import FedGS

            if name not in BASELINES:
                known = [*BASELINES] if key == "objective" else ["fedgs", *BASELINES]
                raise InvalidCombinationError(key, f"is not a baseline; {suggestion(name, known)}")
            try:
                baseline = make_baseline(name, **self.options)
                if key == "objective":
                    FedGS(baseline)
            except AlgorithmError as error:
                raise InvalidCombinationError("options", f"does not fit: {error}") from None
            except ConfigError as error:
                raise InvalidCombinationError(key, f"is not possible: {error}") from None
        return self


class DataSettings(Section):
    """The samples and how they become devices."""

    name: str = Field("femnist", description="glyphs, bearings, femnist, a set of the cache, a file or a folder")
    normalise: Literal["none", "per-channel"] = Field(
        "none", description="per-channel: mean 0 and deviation 1, from sums that devices give"
    )
    samples_per_device: int | None = Field(
        None, ge=1, description="of the embedded sets: mean number of samples; none: glyphs 230, bearings 60"
    )
    min_samples: int = Field(100, ge=0, description="clients with fewer samples are left out (not for glyphs)")
    train_fraction: float = Field(0.9, gt=0, lt=1, description="share of a device's samples to train on")
    partition: str = Field("balanced", description="how devices are dealt to factories")
    attribute: str | None = Field(None, description="the clients' attribute that partition goes by")


class DriftSettings(Section):
    """How the devices' class distributions change; times in mini-batches of a device (fedgs.data.Drift)."""

    kind: Literal["none", "sudden", "gradual", "recurring"] = Field("none", description="none: they stay as they are")
    start: float = Field(100.0, ge=0, description="when the first change begins")
    length: float = Field(100.0, gt=0, description="of the change (gradual) or of a regime (recurring)")
    alpha: float = Field(0.3, gt=0, description="Dirichlet concentration of the new distribution")
    spread: float = Field(0.0, ge=0, description="each device starts later by up to so much")


class StreamSettings(Section):
    """What the devices' next mini-batches are (fedgs.data.DeviceStreams)."""

    mode: Literal["sticky", "fresh", "buffer"] = Field("sticky", description="when a device moves on to its next batch")
    capacity: int | None = Field(None, ge=1, description="buffer: samples a device keeps")
    arrival: float | None = Field(None, gt=0, description="buffer: samples that come in at each iteration")
    drift: DriftSettings = DriftSettings()


class EvaluationSettings(Section):
    """When and how the global model is tested."""

    every: int = Field(1, ge=1, description="rounds between two evaluations; round 0 and the last are always tested")
    target: float | None = Field(None, description="the score whose first round the summary names; none: no target")
    ema: float = Field(0.0, ge=0, lt=1, description="decay of the averaged global model that is tested instead")
    weighting: Literal["test_size", "leaf"] = Field(
        "test_size",
        description="how devices count: by their test samples; leaf: by train and test samples (the authors)",
    )


class ServerSettings(Section):
    """The external synchronisation."""

    rule: str = Field("mean", description="mean (the paper), a server rule of fedgs.algorithms, or package.module:name")
    options: dict[str, Any] = Field(default_factory=dict, description="of that rule")
    class_wise: bool = Field(
        False, description="mean: the classifier's row of a class is averaged by who saw the class in the round"
    )

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.class_wise and self.rule != "mean":
            raise InvalidCombinationError(
                "class_wise", f"is for rule='mean'; with rule={self.rule!r} leave it at false"
            )
        return self


class DynamicsSettings(Section):
    """What can happen to devices; rates are chances for each device and iteration."""

    leave: float = Field(0.0, ge=0, le=1, description="a device that is online goes offline")
    come_back: float = Field(0.1, ge=0, le=1, description="a device that is offline returns")
    move: float = Field(0.0, ge=0, le=1, description="a device moves to another factory")
    drop_out: float = Field(0.0, ge=0, le=1, description="a selected device is lost in mid-iteration")
    straggle: float = Field(0.0, ge=0, le=1, description="a selected device is slow")
    straggle_share: float = Field(0.5, ge=0, lt=1, description="share of its mini-batch a slow device gets done")
    trace: str | None = Field(None, description="CSV of events: iteration,device,event,factory")

    @property
    def active(self) -> bool:
        """Whether anything can happen at all."""
        return self.trace is not None or any((self.leave, self.move, self.drop_out, self.straggle))


class CheckpointSettings(Section):
    """How much a crash may cost."""

    every: int = Field(10, ge=1, description="rounds between two checkpoints")


class Settings(Section):
    """Everything an experiment needs to be repeated. The defaults are the paper's."""

    seed: int = Field(0, ge=0, description="all random streams follow from it")
    federation: FederationSettings = FederationSettings()
    selection: SelectionSettings = SelectionSettings()
    task: TaskSettings | str = Field(
        TaskSettings(), description="what is learnt: a section, or package.module:name of a Task or what returns one"
    )
    algorithm: AlgorithmSettings = AlgorithmSettings()
    training: TrainingSettings = TrainingSettings()
    data: DataSettings = DataSettings()
    streams: StreamSettings = StreamSettings()
    server: ServerSettings = ServerSettings()
    eval: EvaluationSettings = EvaluationSettings()
    dynamics: DynamicsSettings = DynamicsSettings()
    clock: ClockSettings = ClockSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()
    tensorboard: bool = Field(False, description="also write TensorBoard events (extra fedgs[tensorboard])")
    baseline: list[str] = Field(
        default_factory=list, description="key.path=value overrides of a second run that this one is compared with"
    )

    @model_validator(mode="after")
    def _pick_fits(self) -> Self:
        available = self.federation.devices_per_factory
        if self.selection.pick > available and not self.selection.cap:
            raise InvalidCombinationError(
                "selection.pick",
                f"is more than the {available} devices of a factory (federation.devices="
                f"{self.federation.devices} in federation.factories={self.federation.factories}); "
                "lower it, or set selection.cap=true to take all of them",
            )
        return self

    @model_validator(mode="after")
    def _baseline_fits(self) -> Self:
        """Say which settings are FedGS's alone, instead of passing them over."""
        if not self.algorithm.is_baseline:
            return self
        name, most = self.algorithm.name, self.federation.devices
        devices = self.algorithm.devices_per_round
        too = ", and set training.calibration=0" if self.training.calibration else ""
        without = f"with algorithm.name={name!r}"
        no_meaning = (
            f"has no meaning {without}, whose devices train on all their data and send to one server; leave the "
            f"section out ({{key}}={{}}), options go into algorithm.options{too}"
        )
        for key, wrong, reason in (
            ("server", self.server != ServerSettings(), no_meaning),
            ("streams", self.streams != StreamSettings(), no_meaning),
            ("dynamics", self.dynamics != DynamicsSettings(), no_meaning),
            (
                "training.calibration",
                self.training.calibration,
                f"is for FedGS, whose stations know their class mix; {without} leave it at 0",
            ),
            (
                "training.engine",
                self.training.engine not in ("auto", "per-device"),
                f"is for FedGS; {without} use 'auto', or 'per-device': one device after the other",
            ),
            (
                "algorithm.devices_per_round",
                devices is not None and devices > most,
                f"is more than federation.devices={most}; lower it, or leave it out",
            ),
        ):
            if wrong:
                raise InvalidCombinationError(key, reason.replace("{key}", key))
        return self

    def for_baseline(self) -> "Settings":
        """Return these settings without those that only FedGS has."""
        engine = self.training.engine if self.training.engine == "per-device" else "auto"
        objective: dict[str, Any] = {"objective": None, "options": {}} if self.algorithm.objective else {}
        return self.model_copy(
            update={
                "algorithm": self.algorithm.model_copy(update=objective),
                "server": ServerSettings(),
                "streams": StreamSettings(),
                "dynamics": DynamicsSettings(),
                "training": self.training.model_copy(update={"engine": engine, "calibration": 0.0}),
            }
        )


class PlannerSettings(Settings):
    """The settings of a run, and what ``fedgs plan`` needs beside them."""

    plan: PlanSettings = PlanSettings()


class InvalidCombinationError(ValueError):
    """A key whose value cannot be, given the others: ``key`` is relative to the section that says so."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(reason)
        self.key = key
        self.reason = reason
