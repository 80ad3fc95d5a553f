"""The operands of the memory recurrence: checked once at the boundary, then the same for every backend.

Axis letters: B batch, T time, H heads, K key channels per head, V value channels per head.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import isfinite

import torch
from torch import Tensor

from mnemolab.errors import BadRequest

__all__ = ["EPSILON", "MAX_CHANNELS", "Operands", "State", "check_operands", "denominator_write", "with_denominator"]

MAX_CHANNELS = 256
# added to the denominator when `normalize` is set; Katharopoulos et al. 2020 (arXiv 2006.16236) use the same
EPSILON = 1e-6

_FLOATING = frozenset((torch.float64, torch.float32, torch.bfloat16, torch.float16))

State = Tensor | tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Operands:
    """What a backend receives. Shapes, dtypes and devices agree; nothing is cast, copied or made contiguous yet.

    q, k (B,T,H,K); v (B,T,H,V); log_decay None | (B,T,H) | (B,T,H,K); erase None | (B,T,H) | (B,T,H,K);
    write None | (B,T,H) | (B,T,H,V); state0 None | (B,H,K,V); norm0 None | (B,H,K), the denominator's state.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    log_decay: Tensor | None
    erase: Tensor | None
    write: Tensor | None
    state0: Tensor | None
    norm0: Tensor | None
    normalize: bool
    scale: float

    @property
    def sizes(self) -> tuple[int, int, int, int, int]:
        """B, T, H, K, V."""
        return (*self.q.shape, self.v.shape[-1])  # type: ignore[return-value]

    @property
    def state_dtype(self) -> torch.dtype:
        """State, decay and all sums: float32, or float64 when q is float64."""
        return torch.float64 if self.q.dtype == torch.float64 else torch.float32

    @property
    def device(self) -> torch.device:
        return self.q.device

    def kind(self, name: str) -> str:
        """`none`, `scalar` or `channel` for `log_decay`, `erase` and `write`."""
        value = getattr(self, name)
        return "none" if value is None else "scalar" if value.dim() == 3 else "channel"

    def named(self) -> dict[str, Tensor]:
        """Every operand that is there, by its public name."""
        names = ("q", "k", "v", "log_decay", "erase", "write", "state0", "norm0")
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def requires_grad(self) -> bool:
        """Whether any operand wants a gradient."""
        operands = (self.q, self.k, self.v, self.log_decay, self.erase, self.write, self.state0, self.norm0)
        return any(x is not None and x.requires_grad for x in operands)

    def first_state(self) -> Tensor:
        """(B,H,K,V), or (B,H,K,V+1) with the denominator as last column when `normalize` is set; zeros if none came."""
        B, _, H, K, V = self.sizes
        make = {"dtype": self.state_dtype, "device": self.device}
        state = torch.zeros(B, H, K, V, **make) if self.state0 is None else self.state0.to(self.state_dtype)
        if not self.normalize:
            return state
        norm = torch.zeros(B, H, K, **make) if self.norm0 is None else self.norm0.to(self.state_dtype)
        return torch.cat([state, norm.unsqueeze(-1)], -1)


def denominator_write(operands: Operands) -> Tensor | None:
    """(B,T,H) strength with which the denominator writes its value 1; None means 1.

    A per-channel write has no one strength, so its mean over the channels serves: it equals the scalar write whenever
    the channels agree.
    """
    if operands.write is None or operands.write.dim() == 3:
        return operands.write
    return operands.write.to(operands.state_dtype).mean(-1)


def with_denominator(operands: Operands, scan: Callable[[Operands], tuple[Tensor, Tensor]]) -> tuple[Tensor, State]:
    """Run a `scan` that knows no `normalize` on values that carry a column of ones, then divide by what it read there."""
    B, T, H, _, V = operands.sizes
    v = operands.v.to(operands.state_dtype)
    one, write = v.new_ones(B, T, H, 1), operands.write
    if write is not None and write.dim() == 4:
        v = v * write.to(v.dtype)
        one = denominator_write(operands).unsqueeze(-1)  # type: ignore[union-attr]
        write = None
    plain = replace(operands, v=torch.cat([v, one], -1), write=write, state0=operands.first_state(), norm0=None)
    o, state = scan(replace(plain, normalize=False))
    return (o[..., :V] / (o[..., V:] + EPSILON)).to(operands.v.dtype), (state[..., :V], state[..., V])


def check_operands(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    log_decay: Tensor | None,
    erase: Tensor | None,
    write: Tensor | None,
    normalize: bool,
    initial_state: State | None,
    scale: float | None,
    validate: bool | None,
    state_name: str = "initial_state",
) -> Operands:
    """Operands whose shapes, dtypes and devices agree.

    Values (log_decay <= 0, -inf included, and no NaN in it) are checked on the CPU, elsewhere only with `validate=True`:
    the check waits for the device and would break graph capture.

    Raises BadRequest (a ValueError) for shapes, devices and values, TypeError for what is no floating tensor.
    """
    tensors = {"q": q, "k": k, "v": v, "log_decay": log_decay, "erase": erase, "write": write}
    tensors = {name: value for name, value in tensors.items() if value is not None or name in "qkv"}
    for name, value in tensors.items():
        _floating(name, value, q)
    if q.dim() != 4:
        raise BadRequest(f"q has shape {tuple(q.shape)}; it must be (B,T,H,K)")
    B, T, H, K = q.shape
    if v.dim() != 4:
        raise BadRequest(f"v has shape {tuple(v.shape)}; it must be (B,T,H,V)")
    V = v.shape[-1]
    for name, channels in (("K", K), ("V", V)):
        if not 1 <= channels <= MAX_CHANNELS:
            raise BadRequest(f"{name}={channels} channels per head; it must be 1 to {MAX_CHANNELS}, so use more heads")
    if k.shape != q.shape:
        _shape("k", k, {"(B,T,H,K)": (B, T, H, K)}, q)
    if v.shape[:3] != q.shape[:3]:
        _shape("v", v, {"(B,T,H,V)": (B, T, H, V)}, q)
    for name, value, wide, width in (
        ("log_decay", log_decay, "K", K),
        ("erase", erase, "K", K),
        ("write", write, "V", V),
    ):
        if value is not None and value.shape != (B, T, H):
            _shape(name, value, {"(B,T,H)": (B, T, H), f"(B,T,H,{wide})": (B, T, H, width)}, q)
    state0, norm0 = _split_state(initial_state, normalize, state_name)
    if state0 is not None:
        _floating(state_name, state0, q)
        _shape(state_name, state0, {"(B,H,K,V)": (B, H, K, V)}, q)
    if norm0 is not None:
        _floating(f"{state_name}[1]", norm0, q)
        _shape(f"{state_name}[1]", norm0, {"(B,H,K)": (B, H, K)}, q)
    if scale is None:
        scale = K**-0.5
    if not isinstance(scale, (int, float)) or isinstance(scale, bool):
        raise TypeError(f"scale={scale!r} is a {type(scale).__name__}; give a Python number or None for K**-0.5")
    if log_decay is not None and (validate or (validate is None and log_decay.device.type == "cpu")):
        _nonpositive(log_decay)
    try:
        finite = isfinite(scale)
    except OverflowError:  # an integer beyond every float
        finite = False
    if not finite:
        raise BadRequest(f"scale={scale!r:.20}; it must be finite, or None for K**-0.5")
    return Operands(q, k, v, log_decay, erase, write, state0, norm0, bool(normalize), float(scale))


def _floating(name: str, value: Tensor, q: Tensor) -> None:
    usual = isinstance(value, Tensor) and value.dtype in _FLOATING and value.layout is torch.strided
    if usual and value.device == q.device:
        return  # in few operations: on a GPU the host's time counts
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} is a {type(value).__name__}; it must be a floating-point torch.Tensor")
    if not value.dtype.is_floating_point or value.dtype.itemsize == 1:
        raise TypeError(f"{name} has dtype {value.dtype}; it must be float64, float32, bfloat16 or float16")
    if value.layout != torch.strided:
        raise TypeError(f"{name} has layout {value.layout}; it must be a dense tensor, so give {name}.to_dense()")
    if value.device != q.device:
        raise BadRequest(f"{name} is on {value.device} and q on {q.device}; move them to one device")


def _shape(name: str, value: Tensor, allowed: dict[str, tuple[int, ...]], q: Tensor) -> None:
    if tuple(value.shape) not in allowed.values():
        wanted = " or ".join(f"{letters}={shape}" for letters, shape in allowed.items())
        raise BadRequest(f"{name} has shape {tuple(value.shape)}; with q of shape {tuple(q.shape)} it must be {wanted}")


def _split_state(state: State | None, normalize: bool, name: str) -> tuple[Tensor | None, Tensor | None]:
    if state is None:
        return None, None
    if normalize:
        if not isinstance(state, (tuple, list)) or len(state) != 2 or any(part is None for part in state):
            raise BadRequest(f"{name} is {_describe(state)}; with normalize=True it is the pair (S, z)")
        return state[0], state[1]
    if isinstance(state, (tuple, list)):
        raise BadRequest(f"{name} is {_describe(state)}; without normalize it is one tensor S of shape (B,H,K,V)")
    return state, None


def _describe(state: object) -> str:
    if isinstance(state, Tensor):
        return f"one tensor of shape {tuple(state.shape)}"
    if isinstance(state, (tuple, list)):
        return f"a {type(state).__name__} of {len(state)}" + (
            " with None in it" if any(x is None for x in state) else ""
        )
    return f"a {type(state).__name__}"


def _nonpositive(log_decay: Tensor) -> None:
    # the maximum is NaN when any entry is, and NaN <= 0 is false
    if log_decay.numel() == 0 or bool(log_decay.detach().amax() <= 0):
        return
    bad = ~(log_decay <= 0)
    where = tuple(int(i) for i in bad.nonzero()[0])
    raise BadRequest(
        f"log_decay[{', '.join(map(str, where))}]={float(log_decay[where]):g}; natural-log decay must be <= 0 "
        f"({int(bad.sum())} of {log_decay.numel()} entries are not); give log(decay), not decay"
    )
