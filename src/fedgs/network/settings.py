"""Links and clock as settings: frozen, validated, the same keys in a profile, a run's settings and ``fedgs plan``.

A channel is written by bandwidth and SNR or by its rate; keys of ``[clock.internal.up]`` and its like lie over those of
the profile, so ``clock.external.up.rate=50e6`` changes one line of the park and leaves the rest.

Profiles are parks that come with the package, as TOML files with the sources of their numbers; or a file of your own:

    title = "one line"
    [internal.up]          # device to station; also internal.down, external.up/down, direct.up/down (optional)
    bandwidth = 100e6      # Hz
    snr_db = 20.0          # or, in place of both: rate = 500e6 (bit/s)
    latency = 0.007        # seconds, optional
"""

import math
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_core import PydanticCustomError

from fedgs.errors import ConfigError, NetworkError, suggestion
from fedgs.network.clock import VirtualClock, slowness
from fedgs.network.links import Channel, Link, ParkNetwork
from fedgs.section import Section

PROFILES = ("5g", "wifi6", "wired")


class ChannelSettings(Section):
    """One direction of a link: bandwidth and snr_db, or rate. Values that are not given come from the profile."""

    bandwidth: float | None = Field(None, gt=0, description="Hz (B)")
    snr_db: float | None = Field(None, ge=-100, le=200, description="at the receiver, in dB (γ)")
    rate: float | None = Field(None, gt=0, description="bit/s, in place of bandwidth and SNR")
    latency: float | None = Field(None, ge=0, description="seconds, once per synchronisation and direction")

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        if self.rate is not None and (self.bandwidth is not None or self.snr_db is not None):
            raise PydanticCustomError("two_forms", "leave out bandwidth and snr_db, or leave out rate")
        return self

    @property
    def by_rate(self) -> bool:
        """Whether the channel is known by its rate."""
        return self.rate is not None

    def over(self, below: "ChannelSettings") -> "ChannelSettings":
        """Return these settings with the gaps filled from others."""
        latency = self.latency if self.latency is not None else below.latency
        if self.rate is not None:
            return ChannelSettings(rate=self.rate, latency=latency)
        if self.bandwidth is None and self.snr_db is None:
            return below.model_copy(update={"latency": latency})
        return ChannelSettings(
            bandwidth=self.bandwidth if self.bandwidth is not None else below.bandwidth,
            snr_db=self.snr_db if self.snr_db is not None else below.snr_db,
            latency=latency,
        )

    def channel(self, name: str) -> Channel:
        """Return the channel, or say what it lacks."""
        latency = self.latency or 0.0
        if self.rate is not None:
            return Channel.of_rate(self.rate, latency)
        if self.bandwidth is None:
            what = (
                "a bandwidth (it is known by its rate, which has no SNR)" if self.snr_db is not None else "a bandwidth"
            )
            raise NetworkError(f"{name} needs {what}; give bandwidth and snr_db, or rate")
        if self.snr_db is None:
            raise NetworkError(f"{name} needs snr_db beside its bandwidth; give it, or a rate in place of both")
        return Channel(self.bandwidth, self.snr_db, latency)


class LinkSettings(Section):
    """Both directions of a link."""

    up: ChannelSettings = ChannelSettings()
    down: ChannelSettings = ChannelSettings()

    def over(self, below: "LinkSettings") -> "LinkSettings":
        """Return these settings with the gaps filled from others."""
        return LinkSettings(up=self.up.over(below.up), down=self.down.over(below.down))

    def link(self, name: str) -> Link:
        """Return the link, or say what it lacks."""
        return Link(self.up.channel(f"{name}.up"), self.down.channel(f"{name}.down"))


class LinksSettings(Section):
    """The three links of a park."""

    internal: LinkSettings = LinkSettings()
    external: LinkSettings = LinkSettings()
    direct: LinkSettings = LinkSettings()

    def over(self, below: "LinksSettings") -> "LinksSettings":
        """Return these settings with the gaps filled from others."""
        return LinksSettings(
            internal=self.internal.over(below.internal),
            external=self.external.over(below.external),
            direct=self.direct.over(below.direct),
        )

    def network(self) -> ParkNetwork:
        """Return the links. ``direct``, where not given, is ``external`` with devices as receivers, as in the paper."""
        direct = self.direct.over(LinkSettings(up=self.external.up, down=self._direct_down()))
        return ParkNetwork(self.internal.link("internal"), self.external.link("external"), direct.link("direct"))

    def _direct_down(self) -> ChannelSettings:
        outside, device = self.external.down, self.internal.down
        if outside.by_rate or device.snr_db is None:  # a line known by its rate carries that rate to any receiver
            return outside
        return outside.model_copy(update={"snr_db": device.snr_db})


class Profile(LinksSettings):
    """The links of a kind of park."""

    title: str = Field("", description="one line")


def load_profile(name: str) -> Profile:
    """Return a profile of the package, or that of a TOML file."""
    if name in PROFILES:
        return _parsed(files("fedgs.network").joinpath(f"profiles/{name}.toml").read_text(encoding="utf-8"), name)
    path = Path(name)
    if path.suffix != ".toml":
        raise ConfigError(f"no profile is called {name!r}; {profile_hint(name)}")
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; give a profile's name ({', '.join(PROFILES)}) or file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as UTF-8 text ({error})") from None
    return _parsed(text, str(path))


def profile_hint(name: str) -> str:
    """Return what to write instead of a name that is none."""
    return suggestion(name, [*PROFILES, "a .toml file"])


def _parsed(text: str, source: str) -> Profile:
    try:
        profile = Profile.model_validate(tomllib.loads(text))
        profile.network()  # says what is missing
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source}: not valid TOML: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{source}: {key}: {first['msg']}") from None
    except NetworkError as error:
        raise ConfigError(f"{source}: {error}") from None
    return profile


class ClockSettings(LinksSettings):
    """The virtual clock of a run: links, computation, selection, stragglers."""

    profile: str = Field("5g", description="a name in fedgs.network.PROFILES, or a TOML file")
    step_seconds: float | Literal["measured"] = Field(
        "measured", description="seconds of one local step on a device of median speed; measured: on this machine"
    )
    selection_seconds: float | Literal["measured"] = Field(
        "measured", description="seconds of one selection at a station; measured: in this run"
    )
    slowness: float = Field(
        0.0,
        ge=0,
        le=5,
        description="spread of device speeds: standard deviation of the logarithm; 0: all devices are equal",
    )

    @field_validator("step_seconds", "selection_seconds", mode="before")
    @classmethod
    def _time(cls, value: object) -> object:
        # Said here, because of a value that fits neither form pydantic would speak of the forms, not of the setting.
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if value != "measured" and not (number and 0 <= value < math.inf):  # type: ignore[operator]
            raise PydanticCustomError("time", 'give seconds of 0 or more, or "measured"')
        return value

    @field_validator("profile")
    @classmethod
    def _known(cls, value: str) -> str:
        # A file is read when the clock is made: a finished run can be looked at where its profile is no more.
        if value not in PROFILES and not value.endswith(".toml"):
            raise PydanticCustomError("profile", "{hint}", {"hint": f"no such profile; {profile_hint(value)}"})
        return value

    def links(self) -> ParkNetwork:
        """Return the links: those given here over those of the profile; what cannot be is one line."""
        try:
            return self.over(load_profile(self.profile)).network()
        except (ConfigError, NetworkError) as error:
            raise ConfigError(f"clock: {error}") from None

    def clock(self, devices: int, seed: int, measured_step: float | None = None) -> VirtualClock:
        """Return the clock of a park with so many devices; ``measured_step`` is needed where the settings say so."""
        step = self.step_seconds
        if step == "measured":
            if measured_step is None:
                raise NetworkError("clock.step_seconds is to be measured; hand the measured seconds over")
            step = measured_step
        return VirtualClock(
            self.links(),
            step,
            slowness(devices, self.slowness, seed) if self.slowness else None,
            None if self.selection_seconds == "measured" else self.selection_seconds,
        )


class PlanSettings(Section):
    """The additional settings of ``fedgs plan``."""

    model_bytes: float | None = Field(None, gt=0, description="size of the model; none: of the network of the task")
    latency: bool = Field(True, description="whether latencies count; the paper leaves them out")
    rounds: float | None = Field(
        None,
        gt=0,
        description="rounds of FedGS to the target accuracy, with this T and L; none: from the run or the paper",
    )
    fedavg_rounds: float | None = Field(None, gt=0, description="rounds of FedAvg, in the same way")
    most_iterations: int = Field(500, ge=1, le=1_000_000, description="the largest T that is tried")
