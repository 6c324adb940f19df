from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DTYPE_UNSPECIFIED: _ClassVar[DType]
    FLOAT32: _ClassVar[DType]
    BFLOAT16: _ClassVar[DType]
    FLOAT16: _ClassVar[DType]
DTYPE_UNSPECIFIED: DType
FLOAT32: DType
BFLOAT16: DType
FLOAT16: DType

class Tensor(_message.Message):
    __slots__ = ("name", "shape")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ...) -> None: ...

class Params(_message.Message):
    __slots__ = ("tensors", "dtype", "size", "data", "buffers", "integers")
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    BUFFERS_FIELD_NUMBER: _ClassVar[int]
    INTEGERS_FIELD_NUMBER: _ClassVar[int]
    tensors: _containers.RepeatedCompositeFieldContainer[Tensor]
    dtype: DType
    size: int
    data: bytes
    buffers: int
    integers: int
    def __init__(self, tensors: _Optional[_Iterable[_Union[Tensor, _Mapping]]] = ..., dtype: _Optional[_Union[DType, str]] = ..., size: _Optional[int] = ..., data: _Optional[bytes] = ..., buffers: _Optional[int] = ..., integers: _Optional[int] = ...) -> None: ...

class Part(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class Up(_message.Message):
    __slots__ = ("hello", "ready", "update", "part")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    UPDATE_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    ready: Ready
    update: Update
    part: Part
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., ready: _Optional[_Union[Ready, _Mapping]] = ..., update: _Optional[_Union[Update, _Mapping]] = ..., part: _Optional[_Union[Part, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("version", "software")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    version: int
    software: str
    def __init__(self, version: _Optional[int] = ..., software: _Optional[str] = ...) -> None: ...

class Ready(_message.Message):
    __slots__ = ("batch_id", "batch_size", "class_counts", "moments")
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    CLASS_COUNTS_FIELD_NUMBER: _ClassVar[int]
    MOMENTS_FIELD_NUMBER: _ClassVar[int]
    batch_id: int
    batch_size: int
    class_counts: _containers.RepeatedScalarFieldContainer[int]
    moments: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, batch_id: _Optional[int] = ..., batch_size: _Optional[int] = ..., class_counts: _Optional[_Iterable[int]] = ..., moments: _Optional[_Iterable[float]] = ...) -> None: ...

class Update(_message.Message):
    __slots__ = ("step", "batch_id", "num_samples", "loss", "change", "next")
    STEP_FIELD_NUMBER: _ClassVar[int]
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    step: int
    batch_id: int
    num_samples: int
    loss: float
    change: Params
    next: Ready
    def __init__(self, step: _Optional[int] = ..., batch_id: _Optional[int] = ..., num_samples: _Optional[int] = ..., loss: _Optional[float] = ..., change: _Optional[_Union[Params, _Mapping]] = ..., next: _Optional[_Union[Ready, _Mapping]] = ...) -> None: ...

class Down(_message.Message):
    __slots__ = ("task", "step", "part", "bye")
    TASK_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    BYE_FIELD_NUMBER: _ClassVar[int]
    task: Task
    step: Step
    part: Part
    bye: Bye
    def __init__(self, task: _Optional[_Union[Task, _Mapping]] = ..., step: _Optional[_Union[Step, _Mapping]] = ..., part: _Optional[_Union[Part, _Mapping]] = ..., bye: _Optional[_Union[Bye, _Mapping]] = ...) -> None: ...

class Task(_message.Message):
    __slots__ = ("run", "spec", "classes", "inputs", "batch_size", "wire", "digest", "seed", "class_names", "normalise", "moments")
    RUN_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    WIRE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    CLASS_NAMES_FIELD_NUMBER: _ClassVar[int]
    NORMALISE_FIELD_NUMBER: _ClassVar[int]
    MOMENTS_FIELD_NUMBER: _ClassVar[int]
    run: str
    spec: str
    classes: int
    inputs: str
    batch_size: int
    wire: DType
    digest: str
    seed: int
    class_names: _containers.RepeatedScalarFieldContainer[str]
    normalise: bool
    moments: int
    def __init__(self, run: _Optional[str] = ..., spec: _Optional[str] = ..., classes: _Optional[int] = ..., inputs: _Optional[str] = ..., batch_size: _Optional[int] = ..., wire: _Optional[_Union[DType, str]] = ..., digest: _Optional[str] = ..., seed: _Optional[int] = ..., class_names: _Optional[_Iterable[str]] = ..., normalise: bool = ..., moments: _Optional[int] = ...) -> None: ...

class Step(_message.Message):
    __slots__ = ("step", "batch_id", "learning_rate", "weights")
    STEP_FIELD_NUMBER: _ClassVar[int]
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    step: int
    batch_id: int
    learning_rate: float
    weights: Params
    def __init__(self, step: _Optional[int] = ..., batch_id: _Optional[int] = ..., learning_rate: _Optional[float] = ..., weights: _Optional[_Union[Params, _Mapping]] = ...) -> None: ...

class Bye(_message.Message):
    __slots__ = ("reason", "released")
    REASON_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    reason: str
    released: bool
    def __init__(self, reason: _Optional[str] = ..., released: bool = ...) -> None: ...

class RoundIn(_message.Message):
    __slots__ = ("version", "run", "round", "task", "seed", "factory", "pick", "presample", "solver", "target", "first_iteration", "learning_rates", "weights", "coverage", "calibration", "by_class", "clip", "head", "solver_options", "optimizer", "attempt", "elsewhere", "queues", "released")
    class QueuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    FACTORY_FIELD_NUMBER: _ClassVar[int]
    PICK_FIELD_NUMBER: _ClassVar[int]
    PRESAMPLE_FIELD_NUMBER: _ClassVar[int]
    SOLVER_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    FIRST_ITERATION_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATES_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    COVERAGE_FIELD_NUMBER: _ClassVar[int]
    CALIBRATION_FIELD_NUMBER: _ClassVar[int]
    BY_CLASS_FIELD_NUMBER: _ClassVar[int]
    CLIP_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    SOLVER_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ELSEWHERE_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    version: int
    run: str
    round: int
    task: Task
    seed: int
    factory: int
    pick: int
    presample: int
    solver: str
    target: _containers.RepeatedScalarFieldContainer[float]
    first_iteration: int
    learning_rates: _containers.RepeatedScalarFieldContainer[float]
    weights: Params
    coverage: float
    calibration: float
    by_class: bool
    clip: float
    head: str
    solver_options: str
    optimizer: str
    attempt: int
    elsewhere: _containers.RepeatedScalarFieldContainer[str]
    queues: _containers.ScalarMap[str, float]
    released: bool
    def __init__(self, version: _Optional[int] = ..., run: _Optional[str] = ..., round: _Optional[int] = ..., task: _Optional[_Union[Task, _Mapping]] = ..., seed: _Optional[int] = ..., factory: _Optional[int] = ..., pick: _Optional[int] = ..., presample: _Optional[int] = ..., solver: _Optional[str] = ..., target: _Optional[_Iterable[float]] = ..., first_iteration: _Optional[int] = ..., learning_rates: _Optional[_Iterable[float]] = ..., weights: _Optional[_Union[Params, _Mapping]] = ..., coverage: _Optional[float] = ..., calibration: _Optional[float] = ..., by_class: bool = ..., clip: _Optional[float] = ..., head: _Optional[str] = ..., solver_options: _Optional[str] = ..., optimizer: _Optional[str] = ..., attempt: _Optional[int] = ..., elsewhere: _Optional[_Iterable[str]] = ..., queues: _Optional[_Mapping[str, float]] = ..., released: bool = ...) -> None: ...

class RoundOut(_message.Message):
    __slots__ = ("version", "run", "round", "weights", "iterations", "samples", "loss", "divergence", "devices", "announced", "events", "seen", "took_part", "online", "moments", "queues", "turns", "team", "mix", "sent_bytes", "received_bytes")
    class EventsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class QueuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    DIVERGENCE_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    ANNOUNCED_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    SEEN_FIELD_NUMBER: _ClassVar[int]
    TOOK_PART_FIELD_NUMBER: _ClassVar[int]
    ONLINE_FIELD_NUMBER: _ClassVar[int]
    MOMENTS_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    TURNS_FIELD_NUMBER: _ClassVar[int]
    TEAM_FIELD_NUMBER: _ClassVar[int]
    MIX_FIELD_NUMBER: _ClassVar[int]
    SENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    version: int
    run: str
    round: int
    weights: Params
    iterations: int
    samples: int
    loss: float
    divergence: float
    devices: int
    announced: _containers.RepeatedScalarFieldContainer[float]
    events: _containers.ScalarMap[str, int]
    seen: _containers.RepeatedScalarFieldContainer[int]
    took_part: _containers.RepeatedScalarFieldContainer[str]
    online: _containers.RepeatedScalarFieldContainer[str]
    moments: _containers.RepeatedScalarFieldContainer[float]
    queues: _containers.ScalarMap[str, float]
    turns: _containers.RepeatedScalarFieldContainer[int]
    team: _containers.RepeatedScalarFieldContainer[str]
    mix: _containers.RepeatedScalarFieldContainer[int]
    sent_bytes: int
    received_bytes: int
    def __init__(self, version: _Optional[int] = ..., run: _Optional[str] = ..., round: _Optional[int] = ..., weights: _Optional[_Union[Params, _Mapping]] = ..., iterations: _Optional[int] = ..., samples: _Optional[int] = ..., loss: _Optional[float] = ..., divergence: _Optional[float] = ..., devices: _Optional[int] = ..., announced: _Optional[_Iterable[float]] = ..., events: _Optional[_Mapping[str, int]] = ..., seen: _Optional[_Iterable[int]] = ..., took_part: _Optional[_Iterable[str]] = ..., online: _Optional[_Iterable[str]] = ..., moments: _Optional[_Iterable[float]] = ..., queues: _Optional[_Mapping[str, float]] = ..., turns: _Optional[_Iterable[int]] = ..., team: _Optional[_Iterable[str]] = ..., mix: _Optional[_Iterable[int]] = ..., sent_bytes: _Optional[int] = ..., received_bytes: _Optional[int] = ...) -> None: ...

class StatusIn(_message.Message):
    __slots__ = ("events",)
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    events: int
    def __init__(self, events: _Optional[int] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("number", "time", "level", "process", "what", "details")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    number: int
    time: str
    level: str
    process: str
    what: str
    details: str
    def __init__(self, number: _Optional[int] = ..., time: _Optional[str] = ..., level: _Optional[str] = ..., process: _Optional[str] = ..., what: _Optional[str] = ..., details: _Optional[str] = ...) -> None: ...

class DeviceStatus(_message.Message):
    __slots__ = ("name", "state", "turns", "failures", "last_failure")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TURNS_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    LAST_FAILURE_FIELD_NUMBER: _ClassVar[int]
    name: str
    state: str
    turns: int
    failures: int
    last_failure: str
    def __init__(self, name: _Optional[str] = ..., state: _Optional[str] = ..., turns: _Optional[int] = ..., failures: _Optional[int] = ..., last_failure: _Optional[str] = ...) -> None: ...

class StationStatus(_message.Message):
    __slots__ = ("name", "run", "round", "iteration", "iterations", "divergence", "loss", "iterations_per_second", "devices", "sent_bytes", "received_bytes", "mix", "top_sent_bytes", "top_received_bytes", "events")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ITERATION_FIELD_NUMBER: _ClassVar[int]
    ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    DIVERGENCE_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    ITERATIONS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    SENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    MIX_FIELD_NUMBER: _ClassVar[int]
    TOP_SENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOP_RECEIVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    run: str
    round: int
    iteration: int
    iterations: int
    divergence: float
    loss: float
    iterations_per_second: float
    devices: _containers.RepeatedCompositeFieldContainer[DeviceStatus]
    sent_bytes: int
    received_bytes: int
    mix: _containers.RepeatedScalarFieldContainer[int]
    top_sent_bytes: int
    top_received_bytes: int
    events: _containers.RepeatedCompositeFieldContainer[Event]
    def __init__(self, name: _Optional[str] = ..., run: _Optional[str] = ..., round: _Optional[int] = ..., iteration: _Optional[int] = ..., iterations: _Optional[int] = ..., divergence: _Optional[float] = ..., loss: _Optional[float] = ..., iterations_per_second: _Optional[float] = ..., devices: _Optional[_Iterable[_Union[DeviceStatus, _Mapping]]] = ..., sent_bytes: _Optional[int] = ..., received_bytes: _Optional[int] = ..., mix: _Optional[_Iterable[int]] = ..., top_sent_bytes: _Optional[int] = ..., top_received_bytes: _Optional[int] = ..., events: _Optional[_Iterable[_Union[Event, _Mapping]]] = ...) -> None: ...

class TopStatusIn(_message.Message):
    __slots__ = ("lines", "events")
    LINES_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    lines: int
    events: int
    def __init__(self, lines: _Optional[int] = ..., events: _Optional[int] = ...) -> None: ...

class StationReport(_message.Message):
    __slots__ = ("name", "status", "fault")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    name: str
    status: StationStatus
    fault: str
    def __init__(self, name: _Optional[str] = ..., status: _Optional[_Union[StationStatus, _Mapping]] = ..., fault: _Optional[str] = ...) -> None: ...

class TopStatus(_message.Message):
    __slots__ = ("run", "round", "rounds", "solver", "score", "goal", "classes", "target", "lines", "stations", "events")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    SOLVER_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    GOAL_FIELD_NUMBER: _ClassVar[int]
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    LINES_FIELD_NUMBER: _ClassVar[int]
    STATIONS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    run: str
    round: int
    rounds: int
    solver: str
    score: str
    goal: float
    classes: _containers.RepeatedScalarFieldContainer[str]
    target: _containers.RepeatedScalarFieldContainer[float]
    lines: _containers.RepeatedScalarFieldContainer[str]
    stations: _containers.RepeatedCompositeFieldContainer[StationReport]
    events: _containers.RepeatedCompositeFieldContainer[Event]
    def __init__(self, run: _Optional[str] = ..., round: _Optional[int] = ..., rounds: _Optional[int] = ..., solver: _Optional[str] = ..., score: _Optional[str] = ..., goal: _Optional[float] = ..., classes: _Optional[_Iterable[str]] = ..., target: _Optional[_Iterable[float]] = ..., lines: _Optional[_Iterable[str]] = ..., stations: _Optional[_Iterable[_Union[StationReport, _Mapping]]] = ..., events: _Optional[_Iterable[_Union[Event, _Mapping]]] = ...) -> None: ...

class HealthIn(_message.Message):
    __slots__ = ("service",)
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    service: str
    def __init__(self, service: _Optional[str] = ...) -> None: ...

class HealthOut(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: int
    def __init__(self, status: _Optional[int] = ...) -> None: ...
