"""The base class of all settings: of a run, of links and the clock, of deployed stations and devices."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A group of settings that cannot be changed once made and refuses keys it does not know."""

    # strict: the string "12" is not the number 12; a TOML file says which it means.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
