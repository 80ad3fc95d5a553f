"""What a check of a claim says: a number, the bounds it was to keep, and whether it kept them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf, isfinite
from typing import TypeVar

from mnemolab.errors import BadRequest, MnemolabError, unknown

__all__ = ["TIERS", "Check", "CheckFunction", "Undecidable", "device_kind", "first_seed", "preset"]

T = TypeVar("T")

TIERS = ("quick", "full", "replicate")
# seeds of the replication; disjoint from those of the other tiers
_REPLICATION = 1000


@dataclass(frozen=True)
class Check:
    """`value` in `unit` is to lie in [low, high]; None leaves an end open.

    With an `interval` the whole of it must lie there: a value that is right by luck is not enough. `detail` says how the
    number came about: shapes, counts, what was compared.
    """

    name: str
    value: float
    low: float | None
    high: float | None
    unit: str
    detail: str = ""
    interval: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if self.low is None and self.high is None:
            raise ValueError(f"check {self.name!r} has no bound and could not fail; give low or high")

    @property
    def passed(self) -> bool:
        """Whether the interval, or the value where there is none, keeps the bounds. What is not finite does not."""
        low, high = -inf if self.low is None else self.low, inf if self.high is None else self.high
        ends = (self.value,) if self.interval is None else (self.value, *self.interval)
        return all(isfinite(end) and low <= end <= high for end in ends)


# function(tier, device) -> its checks
CheckFunction = Callable[[str, str], list[Check]]


class Undecidable(MnemolabError):
    """A claim that cannot be decided where this runs: why, and what would decide it."""

    def __init__(self, reason: str, decides: str):
        super().__init__(f"{reason}; {decides} would decide it")
        self.reason, self.decides = reason, decides


def preset(table: Mapping[str, Mapping[str, T]], tier: str, device: str) -> T:
    """`table[kind of device][tier]`; the replication has the full tier's shapes.

    Raises BadRequest for a tier or a device that there is no preset for.
    """
    if tier not in TIERS:
        raise unknown("tier", tier, TIERS)
    kind = device_kind(device)
    if kind not in table:
        raise BadRequest(f"device={device!r}; shapes are preset for {' and '.join(table)}")
    return table[kind]["quick" if tier == "quick" else "full"]


def device_kind(device: str) -> str:
    """`cuda:1` -> `cuda`."""
    return device.partition(":")[0]


def first_seed(tier: str) -> int:
    """Where a tier's seeds begin."""
    if tier not in TIERS:
        raise unknown("tier", tier, TIERS)
    return _REPLICATION if tier == "replicate" else 0
