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
    __slots__ = ("batch_id", "batch_size", "class_counts")
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    CLASS_COUNTS_FIELD_NUMBER: _ClassVar[int]
    batch_id: int
    batch_size: int
    class_counts: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, batch_id: _Optional[int] = ..., batch_size: _Optional[int] = ..., class_counts: _Optional[_Iterable[int]] = ...) -> None: ...

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
    __slots__ = ("run", "spec", "classes", "inputs", "batch_size", "wire", "digest", "seed")
    RUN_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    WIRE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    run: str
    spec: str
    classes: int
    inputs: str
    batch_size: int
    wire: DType
    digest: str
    seed: int
    def __init__(self, run: _Optional[str] = ..., spec: _Optional[str] = ..., classes: _Optional[int] = ..., inputs: _Optional[str] = ..., batch_size: _Optional[int] = ..., wire: _Optional[_Union[DType, str]] = ..., digest: _Optional[str] = ..., seed: _Optional[int] = ...) -> None: ...

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
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class RoundIn(_message.Message):
    __slots__ = ("version", "run", "round", "task", "seed", "factory", "pick", "presample", "solver", "target", "first_iteration", "learning_rates", "weights", "coverage", "calibration", "by_class", "clip", "head", "solver_options", "optimizer")
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
    def __init__(self, version: _Optional[int] = ..., run: _Optional[str] = ..., round: _Optional[int] = ..., task: _Optional[_Union[Task, _Mapping]] = ..., seed: _Optional[int] = ..., factory: _Optional[int] = ..., pick: _Optional[int] = ..., presample: _Optional[int] = ..., solver: _Optional[str] = ..., target: _Optional[_Iterable[float]] = ..., first_iteration: _Optional[int] = ..., learning_rates: _Optional[_Iterable[float]] = ..., weights: _Optional[_Union[Params, _Mapping]] = ..., coverage: _Optional[float] = ..., calibration: _Optional[float] = ..., by_class: bool = ..., clip: _Optional[float] = ..., head: _Optional[str] = ..., solver_options: _Optional[str] = ..., optimizer: _Optional[str] = ...) -> None: ...

class RoundOut(_message.Message):
    __slots__ = ("version", "run", "round", "weights", "iterations", "samples", "loss", "divergence", "devices", "announced", "events", "seen")
    class EventsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
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
    def __init__(self, version: _Optional[int] = ..., run: _Optional[str] = ..., round: _Optional[int] = ..., weights: _Optional[_Union[Params, _Mapping]] = ..., iterations: _Optional[int] = ..., samples: _Optional[int] = ..., loss: _Optional[float] = ..., divergence: _Optional[float] = ..., devices: _Optional[int] = ..., announced: _Optional[_Iterable[float]] = ..., events: _Optional[_Mapping[str, int]] = ..., seen: _Optional[_Iterable[int]] = ...) -> None: ...

class StatusIn(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

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
    __slots__ = ("name", "run", "round", "iteration", "iterations", "divergence", "loss", "iterations_per_second", "devices", "sent_bytes", "received_bytes")
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
    def __init__(self, name: _Optional[str] = ..., run: _Optional[str] = ..., round: _Optional[int] = ..., iteration: _Optional[int] = ..., iterations: _Optional[int] = ..., divergence: _Optional[float] = ..., loss: _Optional[float] = ..., iterations_per_second: _Optional[float] = ..., devices: _Optional[_Iterable[_Union[DeviceStatus, _Mapping]]] = ..., sent_bytes: _Optional[int] = ..., received_bytes: _Optional[int] = ...) -> None: ...
