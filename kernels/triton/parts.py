"""What passes between the launches of a scan, for `workspace.py` to lay out."""

from typing import TYPE_CHECKING

import torch

from mnemolab.kernels.triton.table import padded

if TYPE_CHECKING:
    from mnemolab.kernels.triton.scan import Geometry

__all__ = ["backward_parts", "kept_parts", "segment_parts"]


def kept_parts(geo: "Geometry", save: bool) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """What the forward pass computes on the way and, with `save`, leaves for the backward pass, by the names of `prepare.py`
    and `forward.py`: shape, heads first so that the chunks of one head lie together, and dtype."""
    P, wide = geo.config.precision, torch.float32
    at = (geo.B * geo.H, geo.NT)
    C, BK, FV = geo.config.C, padded(geo.K), padded(geo.V)
    found: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
    if geo.prepares:
        found["A"] = (*at, C, C), P.decayed
    if geo.erase:
        found["W"], found["X"] = ((*at, C, BK), P.store), ((*at, C, C), P.decayed)
    if geo.decay == 1 and geo.erase:
        found["G"] = (*at, 3, C), wide
    if geo.decay == 2:
        found["Q"] = found["K"] = (*at, C, BK), P.decayed
        found["G"] = (*at, BK), wide
    if geo.segments > 1:
        # of the segments' transitions; the last one's is never needed
        ends = geo.B * geo.H, geo.segments - 1
        if geo.erase:
            found["M"] = (*ends, BK, BK), wide
        elif geo.decay:
            found["M"] = (*ends, BK), wide
    if save:
        found["S"] = (*at, BK, FV), P.store
        if geo.erase:
            found["U"] = (*at, C, FV), P.store
        if geo.normalize:
            found["den"], found["r"], found["z"] = ((*at, C), wide), ((*at, C), wide), ((*at, BK), wide)
    return found


def backward_parts(geo: "Geometry") -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """What `backward.py` leaves for `gradients.py`."""
    P, wide = geo.config.precision, torch.float32
    at = (geo.B * geo.H, geo.NT)
    C, BK, FV = geo.config.C, padded(geo.K), padded(geo.V)
    found: dict[str, tuple[tuple[int, ...], torch.dtype]] = {"D": ((*at, BK, FV), P.store)}
    if geo.erase:
        found["dU"] = (*at, C, FV), P.store
    if geo.normalize:
        found["dz"], found["dden"] = ((*at, BK), wide), ((*at, C), wide)
        if geo.erase:
            found["dr"] = (*at, C), wide
    return found


def segment_parts(geo: "Geometry") -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """What `segments.py` leaves for itself (L) and for the recurrence (E), in either direction."""
    at = (geo.B * geo.H, geo.segments)
    shapes = {"L": (*at, padded(geo.K), padded(geo.V)), "Lz": (*at, padded(geo.K))}
    shapes |= {f"E{name[1:]}": shape for name, shape in shapes.items()}
    return {name: (shape, torch.float32) for name, shape in shapes.items() if geo.normalize or not name.endswith("z")}
