"""The links of ``fedgs plan``: those of a profile or a run, with what the command line says in their place."""

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from fedgs.cli.plan_run import RunFacts
    from fedgs.network import LinksSettings, Profile
    from fedgs.network.settings import ChannelSettings

DEFAULT_PROFILE = "5g"
RECEIVERS = {
    "--snr-top": ("the top server receives", (("external", "up"), ("direct", "up"))),
    "--snr-station": ("the stations receive", (("internal", "up"), ("external", "down"))),
    "--snr-device": ("the devices receive", (("internal", "down"), ("direct", "down"))),
}
"""Who receives on which channels; the paper's γ_top, γ_BS and γ_device."""
LEAST_DB, MOST_DB = -100, 200
IN_HERTZ = "give them in Hz, as in --internal 100MHz"


class LinkOptions(NamedTuple):
    """What the command line says of the links; None: nothing."""

    internal: str | None
    internal_up: str | None
    internal_down: str | None
    external: str | None
    external_up: str | None
    external_down: str | None
    direct: str | None
    snrs: dict[str, float | None]
    """by option: --snr for all receivers, and those of RECEIVERS"""

    def channels(self) -> dict[tuple[str, str], tuple[str, str | None]]:
        """Return the option and its text for each direction of each link; its own comes before that of both."""
        return {
            ("internal", "up"): _either("--internal", self.internal, "-up", self.internal_up),
            ("internal", "down"): _either("--internal", self.internal, "-down", self.internal_down),
            ("external", "up"): _either("--external", self.external, "-up", self.external_up),
            ("external", "down"): _either("--external", self.external, "-down", self.external_down),
            ("direct", "up"): ("--direct", self.direct),
            ("direct", "down"): ("--direct", self.direct),
        }


def _either(option: str, both: str | None, way: str, own: str | None) -> tuple[str, str | None]:
    return (option, both) if own is None else (option + way, own)


def links_to_begin_with(profile: str | None, known: "RunFacts | None") -> "Profile":
    """Return the links of the profile, or of the run."""
    from fedgs.network import Profile, load_profile

    if known is None or profile is not None:
        return load_profile(profile or DEFAULT_PROFILE)
    clock = known.settings.clock
    below = load_profile(clock.profile)
    return Profile(**clock.over(below).model_dump(), title=below.title)


def given_links(profile: "LinksSettings", options: LinkOptions) -> "LinksSettings":
    """Return the profile's links with what the command line says in place."""
    from fedgs.network import LinksSettings

    values = _bandwidths(options)
    _put_snrs(values, LinksSettings.model_validate(values).over(profile), options.snrs)
    return LinksSettings.model_validate(values).over(profile)


Values = dict[str, dict[str, dict[str, float]]]


def _bandwidths(options: LinkOptions) -> Values:
    from fedgs.cli.quantities import bandwidth
    from fedgs.errors import ConfigError

    values: Values = {"internal": {}, "external": {}, "direct": {}}
    for (link, way), (option, text) in options.channels().items():
        if text is not None:
            value, by_rate = bandwidth(option, text)
            if value <= 0:
                raise ConfigError(f"{option} {text} is impossible; it must be above 0")
            values[link][way] = {"rate" if by_rate else "bandwidth": value}
    return values


def _put_snrs(values: Values, known: "LinksSettings", snrs: dict[str, float | None]) -> None:
    """Add the SNRs to the channels that are known in Hz; refuse one that changes nothing."""
    from fedgs.errors import ConfigError

    for option, decibels in snrs.items():
        if decibels is not None and not LEAST_DB <= decibels <= MOST_DB:
            raise ConfigError(f"{option} {decibels:g} is impossible; it must be from {LEAST_DB} to {MOST_DB} dB")
    everyone, changed = snrs["--snr"], False
    for option, (receiver, channels) in RECEIVERS.items():
        own = snrs[option]
        decibels = own if own is not None else everyone
        if decibels is None:
            continue
        in_hertz = [(link, way) for link, way in channels if _channel(known, link, way).bandwidth is not None]
        if not in_hertz and own is not None:
            raise ConfigError(f"{option} changes nothing: {receiver} on links given as rates; {IN_HERTZ}")
        for link, way in in_hertz:
            values[link].setdefault(way, {})["snr_db"] = decibels
            changed = True
    if everyone is not None and not changed:
        raise ConfigError(f"--snr changes nothing: all links are given as rates; {IN_HERTZ}")


def _channel(known: "LinksSettings", link: str, way: str) -> "ChannelSettings":
    """Return one direction of a link; what is not said of the direct one is as on the external one."""
    channel: ChannelSettings = getattr(getattr(known, link), way)
    return channel.over(getattr(known.external, way)) if link == "direct" else channel
