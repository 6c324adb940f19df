"""The settings of an experiment as frozen, validated sections; :mod:`fedgs.config` reads them from files.

Names are words; the paper's symbol stands beside each (Table I and section VII-A give the defaults).
"""

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from fedgs.errors import AlgorithmError, ConfigError, SolverError, suggestion
from fedgs.network.settings import ClockSettings, PlanSettings
from fedgs.section import Section


class FederationSettings(Section):
    """The number of devices and factories."""

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

    weight: float = Field(0.0, ge=0, le=1e20, description="weight V of the coverage queues; 0: off; recommended: 0.3")
    share: Literal["data", "turns", "fresh"] = Field(
        "data", description="fair share of a device: by its data, equal for all, or by the unused samples of its stream"
    )


COVERAGE_WEIGHT = 0.3
"""V of the preset ``coverage``; benchmarks/selection_coverage.py shows why."""


class SelectionSettings(Section):
    """How a base station selects devices in each iteration."""

    solver: str = Field("gbp-cs", description="a name in fedgs.selection.SOLVERS, 'auto', or package.module:name")
    options: dict[str, Any] = Field(default_factory=dict, description="options of the solver, such as starts or budget")
    pick: int = Field(10, ge=1, description="devices selected per factory and iteration (L)")
    coverage: CoverageSettings = CoverageSettings()
    presample: int = Field(
        default_factory=lambda given: _presample(given),
        ge=0,
        validate_default=True,
        description="of these, the number that is drawn at random before the solver runs (L_rnd); not given: "
        "a fifth of pick, as in the paper, and none with coverage, random-by-data or a policy of another paper",
    )
    cap: bool = Field(False, description="a factory with fewer than pick devices selects all of them")
    start: Literal["mpinv", "zero", "random"] = Field("mpinv", description="first point of gbp-cs")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        # Imported here, because it loads the compiler, which settings alone do not need.
        from fedgs.selection.solve import SOLVERS

        own = ":" in self.solver  # what is imported is looked at when it is
        _check_solver("solver", self.solver, "options", self.options)
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


def _check_solver(key: str, name: str, options_key: str, options: dict[str, Any]) -> None:
    """Refuse a solver that there is not, or options it does not take; what is imported is looked at when it is."""
    from fedgs.selection.solve import SOLVERS, look_up

    if ":" in name:
        return
    if name not in ("auto", *SOLVERS):
        raise InvalidCombinationError(key, f"is not a solver; {suggestion(name, [*SOLVERS, 'auto'])}")
    if options and name == "auto":
        raise InvalidCombinationError(options_key, f"are of one solver; name it instead of {key}='auto'")
    try:
        look_up("exact" if name == "auto" else name, options)
    except SolverError as error:
        raise InvalidCombinationError(options_key, f"do not fit: {error}") from None


def _presample(given: Mapping[str, Any]) -> int:
    """L_rnd where none is given; ``given`` holds the settings before it, those that are possible."""
    from fedgs.selection.solve import RIVALS

    if given.get("solver") in ("random-by-data", *RIVALS) or given.get("coverage", CoverageSettings()).weight:
        return 0
    return round(int(given.get("pick", 10)) / 5)


class ScheduleSettings(Section):
    """The learning-rate schedule; all times are in rounds."""

    kind: Literal["constant", "step", "cosine"] = Field("constant", description="the paper: constant")
    warmup: float = Field(0.0, ge=0, description="rounds of linear warm-up from 0")
    every: int = Field(100, ge=1, description="step: rounds between two reductions")
    factor: float = Field(0.5, gt=0, le=1, description="step: factor of each reduction")
    floor: float = Field(0.0, ge=0, le=1, description="cosine: the last learning rate as a share of the first")


class TaskSettings(Section):
    """Network, loss and metrics (fedgs.Task); names with a colon, package.module:name, are imported."""

    model: str = Field("paper", description="a built-in network, or package.module:name of a network or what makes one")
    options: dict[str, Any] = Field(default_factory=dict, description="keyword arguments of the network")
    loss: str = Field("cross_entropy", description="cross_entropy, mse, l1, huber, bce, or package.module:name")
    metrics: list[str] | None = Field(
        None, description="accuracy, mae, rmse, … or package.module:name; none: the usual metrics of the loss"
    )
    score: str | None = Field(None, description="the main metric, or loss; none: the first metric")
    mode: Literal["max", "min"] | None = Field(None, description="whether a higher score is better, or a lower one")
    balance: str | None = Field(None, description="package.module:name of f(targets) → bins; none: the class")
    bins: int | None = Field(
        None, ge=1, description="number of bins that selection balances; none: the bins that occur"
    )
    prepare: str | None = Field(None, description="package.module:name of f(stored inputs) → network inputs")
    augment: str | None = Field(None, description="package.module:name of f(inputs, generator) → inputs, in training")
    features: str | None = Field(None, description="the submodule whose output FedFusion fuses")
    head: str | None = Field(None, description="the last layer, linear with one bias per class")
    keep_local: list[str] = Field(default_factory=list, description="patterns of weights that stay on the devices")


class TrainingSettings(Section):
    """How the model is trained."""

    rounds: int = Field(500, ge=0, description="communication rounds, the paper's external synchronisations (R)")
    iterations: int = Field(50, ge=1, description="iterations per round, the paper's internal synchronisations (T)")
    batch_size: int = Field(32, ge=1, description="samples per mini-batch (n)")
    learning_rate: float = Field(0.01, gt=0, le=1e30, description="learning rate of one SGD step (η)")
    optimizer: Literal["sgd", "momentum", "adam", "adamw"] = Field(
        "sgd", description="optimizer of the stations, or of the clients of a baseline; the paper: sgd"
    )
    momentum: float = Field(
        0.0, ge=0, lt=1, description="momentum of sgd (0: none, as in the paper) and of momentum (0 means 0.9)"
    )
    betas: list[float] = Field([0.9, 0.999], min_length=2, max_length=2, description="β₁ and β₂ of adam and adamw")
    epsilon: float = Field(1e-8, gt=0, description="ε of adam and adamw")
    weight_decay: float = Field(0.0, ge=0, description="weight decay λ of any optimizer")
    clip: float | None = Field(
        None,
        gt=0,
        description="gradient clipping: largest norm of a station's mean gradient, or of a client's; none: off",
    )
    calibration: float = Field(
        0.0,
        ge=0,
        le=10,
        description="logit adjustment for a station's class distribution (τ); 0: off, 1: full",
    )
    schedule: ScheduleSettings = ScheduleSettings()
    engine: Literal["auto", "fused", "clients", "per-device", "graph", "stacked"] = Field(
        "auto",
        description="fused: one step on the union batch; clients: one step per device, in parallel; per-device: "
        "the slow reference; graph, stacked: fused, for GPUs",
    )
    precision: Literal["float32", "tf32", "bfloat16"] = Field(
        "tf32",
        description="precision of products; CPUs compute in float32; with AVX512-BF16 or AMX also in bfloat16, except "
        "the built-in networks of baselines",
    )

    @field_validator("betas")
    @classmethod
    def _decays(cls, given: list[float]) -> list[float]:
        if not all(0 <= beta < 1 for beta in given):
            raise ValueError("each lies from 0 to below 1")
        return given


class AlgorithmSettings(Section):
    """The algorithm: FedGS or a baseline."""

    name: str = Field("fedgs", description="fedgs, a baseline (fedgs baselines), or package.module:name of your own")
    options: dict[str, Any] = Field(default_factory=dict, description="options of a baseline, or of the objective")
    objective: str | None = Field(
        None,
        description="fedgs: the local objective of a baseline (fedprox, fedmmd) or package.module:name; none: the loss",
    )
    kind: Literal["fedgs", "baseline"] | None = Field(
        None, description="how your own algorithm runs its rounds; none: its own attribute kind"
    )
    devices_per_round: int | None = Field(
        None, ge=1, description="clients per round of a baseline; none: factories × pick (M·L)"
    )
    sampling: str = Field(
        "random",
        description="how a baseline's clients are chosen: random, a name in fedgs.selection.SOLVERS, 'auto', or "
        "package.module:name",
    )
    sampling_options: dict[str, Any] = Field(default_factory=dict, description="options of that solver")
    local_epochs: int = Field(5, ge=1, description="local epochs of a client in a round of a baseline")
    learning_rate: float | None = Field(
        None, gt=0, description="learning rate of a baseline without its own client_lr; none: training.learning_rate"
    )

    @property
    def is_baseline(self) -> bool:
        """Whether clients talk to one server directly, without base stations."""
        return self.kind == "baseline" if self.kind is not None else self.name != "fedgs"

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.name == "fedgs":
            wrong = {"options": self.options and not self.objective, "devices_per_round": self.devices_per_round,
                     "sampling": self.sampling != "random", "sampling_options": self.sampling_options}  # fmt: skip
            for key in (key for key, given in wrong.items() if given):
                raise InvalidCombinationError(key, "has no meaning with algorithm.name='fedgs'; remove it")
        elif self.objective is not None:
            raise InvalidCombinationError(
                "objective", "is for algorithm.name='fedgs'; a baseline has an objective of its own"
            )
        _check_solver("sampling", self.sampling, "sampling_options", self.sampling_options)
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


class SplitSettings(Section):
    """Split a data set among new devices with a label skew (fedgs.data.label_skew)."""

    kind: Literal["dirichlet", "classes-per-device"] = Field(
        "dirichlet", description="shares of each class from a Dirichlet distribution, or a number of classes per device"
    )
    devices: int | None = Field(None, ge=1, description="number of new devices; none: federation.devices")
    alpha: float = Field(0.3, gt=0, description="dirichlet: concentration α; smaller means more label skew")
    classes: int = Field(2, ge=1, description="classes-per-device: classes of each device (k)")


class DataSettings(Section):
    """The data set and how it is divided among devices and factories."""

    name: str = Field("femnist", description="glyphs, bearings, femnist, a set of the cache, a file or a folder")
    normalise: Literal["none", "per-channel"] = Field(
        "none", description="per-channel: mean 0 and standard deviation 1, from sums that devices send"
    )
    samples_per_device: int | None = Field(
        None, ge=1, description="embedded data sets: mean number of samples; none: glyphs 230, bearings 60"
    )
    min_samples: int = Field(100, ge=0, description="clients with fewer samples are left out (not for glyphs)")
    train_fraction: float = Field(0.9, gt=0, lt=1, description="share of a device's samples to train on")
    validation: float = Field(
        0.0, ge=0, lt=1, description="for tuning: test on this share of the train samples instead of the test samples"
    )
    partition: str = Field(
        "balanced", description="how devices are assigned to factories: balanced, random, by-attribute, one-per-value"
    )
    attribute: str | None = Field(None, description="the attribute of clients that partition uses")
    size: list[int] | None = Field(
        None, min_length=2, max_length=2, description="folder of images: resize to height and width, or to a square"
    )
    grey: bool | None = Field(
        None, description="folder of images: true makes them grey, false coloured; none: like the first image"
    )
    split: SplitSettings | None = Field(
        None, description="split the samples among new devices; none: the devices of the data set"
    )

    @field_validator("size", mode="before")
    @classmethod
    def _square(cls, given: Any) -> Any:
        """One side stands for both."""
        found = [given, given] if isinstance(given, int) and not isinstance(given, bool) else given
        if found is not None and not (isinstance(found, list) and len(found) == 2):
            raise ValueError("give a number of pixels, or height and width: 64 or [48, 64]")
        if isinstance(found, list) and any(isinstance(side, int) and side < 1 for side in found):
            raise ValueError("an image has at least one pixel")
        return found


class DriftSettings(Section):
    """How the devices' class distributions change; times in mini-batches of a device (fedgs.data.Drift)."""

    kind: Literal["none", "sudden", "gradual", "recurring"] = Field(
        "none", description="how class distributions change over time; none: they do not change"
    )
    start: float = Field(100.0, ge=0, description="when the first change begins")
    length: float = Field(100.0, gt=0, description="length of the change (gradual) or of a regime (recurring)")
    alpha: float = Field(0.3, gt=0, description="Dirichlet concentration of the new distribution")
    spread: float = Field(0.0, ge=0, description="each device starts later by a random delay up to this value")


class StreamSettings(Section):
    """The order of the devices' mini-batches (fedgs.data.DeviceStreams)."""

    mode: Literal["sticky", "fresh", "buffer"] = Field("sticky", description="when a device moves on to its next batch")
    capacity: int | None = Field(None, ge=1, description="buffer: samples a device keeps")
    arrival: float | None = Field(None, gt=0, description="buffer: samples that come in at each iteration")
    drift: DriftSettings = DriftSettings()


class EvaluationSettings(Section):
    """When and how the global model is tested."""

    every: int = Field(1, ge=1, description="rounds between two evaluations; round 0 and the last are always tested")
    target: float | None = Field(
        None, description="target score: the summary has the first round that reaches it; none: no target"
    )
    ema: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="decay of an exponential moving average of the global model, which is tested instead; 0: off",
    )
    weighting: Literal["test_size", "leaf"] = Field(
        "test_size",
        description="weight of a device in tests: by its test samples; leaf: by train and test samples (the authors)",
    )


class ServerSettings(Section):
    """How the top server averages the stations' models (the paper's external synchronisation)."""

    rule: str = Field("mean", description="mean (the paper), a server rule of fedgs.algorithms, or package.module:name")
    options: dict[str, Any] = Field(default_factory=dict, description="options of the server rule")
    class_wise: bool = Field(
        False,
        description="with rule mean: class-wise averaging of the classifier, by how much each station saw of a class",
    )

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.class_wise and self.rule != "mean":
            raise InvalidCombinationError(
                "class_wise", f"is for rule='mean'; with rule={self.rule!r} leave it at false"
            )
        return self


class DynamicsSettings(Section):
    """Devices that leave, return, move or fail; rates are probabilities per device and iteration."""

    leave: float = Field(0.0, ge=0, le=1, description="a device that is online goes offline")
    come_back: float = Field(0.1, ge=0, le=1, description="a device that is offline returns")
    move: float = Field(0.0, ge=0, le=1, description="a device moves to another factory")
    drop_out: float = Field(0.0, ge=0, le=1, description="a selected device is lost during an iteration")
    straggle: float = Field(0.0, ge=0, le=1, description="a selected device is slow")
    straggle_share: float = Field(0.5, ge=0, lt=1, description="share of its mini-batch that a slow device finishes")
    trace: str | None = Field(None, description="CSV of events: iteration,device,event,factory")

    @property
    def active(self) -> bool:
        """Whether anything can happen at all."""
        return self.trace is not None or any((self.leave, self.move, self.drop_out, self.straggle))


class CheckpointSettings(Section):
    """How often checkpoints are written."""

    every: int = Field(10, ge=1, description="rounds between two checkpoints")


LOGGERS = ("tensorboard", "mlflow", "wandb")
"""Settings that log a run elsewhere too."""


class Settings(Section):
    """All settings of a run. The defaults are those of the paper.

    Examples:
        >>> import fedgs
        >>> fedgs.Settings(training={"rounds": 20}).training.iterations
        50
    """

    seed: int = Field(0, ge=0, description="the seed of all random numbers")
    federation: FederationSettings = FederationSettings()
    selection: SelectionSettings = SelectionSettings()
    task: TaskSettings | str = Field(
        TaskSettings(),
        description="the task: a section, or package.module:name of a Task or of a function that returns one",
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
    init: str | None = Field(
        None,
        description="a trained model to start from: the folder of a run, a .safetensors or .pt2 file, or a saved "
        "state_dict; none: random weights",
    )
    tensorboard: bool = Field(False, description="also write TensorBoard events (extra fedgs[tensorboard])")
    mlflow: bool = Field(False, description="also log to MLflow, at MLFLOW_TRACKING_URI (extra fedgs[mlflow])")
    wandb: bool = Field(False, description="also log to Weights & Biases, see WANDB_MODE (extra fedgs[wandb])")
    baseline: list[str] = Field(
        default_factory=list, description="key.path=value overrides of a second run, the baseline of this one"
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
        """Return these settings without those that only FedGS uses."""
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
    """The settings of a run, and those of ``fedgs plan``."""

    plan: PlanSettings = PlanSettings()


class InvalidCombinationError(ValueError):
    """A key whose value cannot be, given the others: ``key`` is relative to the section that says so."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(reason)
        self.key = key
        self.reason = reason
