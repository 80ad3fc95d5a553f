"""The entrance to the memory recurrence: check the operands, pick a backend, run it."""

from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from mnemolab.errors import BadRequest, unknown
from mnemolab.kernels import chunked, loop
from mnemolab.kernels.neighbours.dispatch import check_writable
from mnemolab.kernels.operands import Operands, State, check_operands
from mnemolab.kernels.triton import backend as triton

__all__ = ["BACKENDS", "Choice", "explain_backend", "memory_scan", "memory_step"]

# Name -> module with `supports(operands) -> reason it cannot, or None`, `scan(operands, chunk_size) -> (o, state)` and
# `step(operands) -> (o, state)` for T = 1. Modules, not names: torch.compile follows attributes, not imports.
BACKENDS: dict[str, ModuleType] = {"loop": loop, "chunked": chunked, "triton": triton}
# `auto` takes the first that supports the operands; the last supports everything
_SCAN_ORDER = ("triton", "chunked")
_STEP_ORDER = ("triton", "loop")


@dataclass(frozen=True)
class Choice:
    """The backend that runs and why: for each backend passed over, its reason."""

    backend: str
    reasons: dict[str, str]

    def __str__(self) -> str:
        passed = "; ".join(f"{name}: {reason}" for name, reason in self.reasons.items())
        return self.backend + (f" ({passed})" if passed else "")


def memory_scan(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    log_decay: Tensor | None = None,
    erase: Tensor | None = None,
    write: Tensor | None = None,
    normalize: bool = False,
    initial_state: State | None = None,
    scale: float | None = None,
    output_final_state: bool = False,
    chunk_size: int | None = None,
    backend: str = "auto",
    validate: bool | None = None,
) -> tuple[Tensor, Any]:
    """Decay the state, read it with the erase key, write along k, read it with q, for every token.

        S_t = diag(exp log_decay_t) S_{t-1};  S_t += k_t (write_t*v_t - S_t^T (erase_t*k_t))^T;  o_t = scale S_t^T q_t

    Shapes: q, k (B,T,H,K); v (B,T,H,V); log_decay None | (B,T,H) | (B,T,H,K), natural log, <= 0, -inf wipes;
    erase None | (B,T,H) | (B,T,H,K); write None | (B,T,H) | (B,T,H,V); initial_state (B,H,K,V).
    `scale=None` means K**-0.5. T and B may be 0; K and V are 1 to 256; any strides; float64, 32, 16 and bfloat16, mixed.

    `normalize` divides o by scale n_t^T q_t + 1e-6, where n obeys the same recurrence with value 1 (a per-channel write
    enters it by its mean); then a state is the pair (S, n), n (B,H,K).

    Returns o (B,T,H,V) in v.dtype and the final state (None unless `output_final_state`), float32, or float64 when q is.
    All operands and the initial state get gradients. `chunk_size` is a power of two for backends that cut time.

    Raises BadRequest (a ValueError) for shapes, devices, values and backends, TypeError for dtypes. `log_decay <= 0` is
    checked on the CPU, elsewhere only with `validate=True`.

    Source: Kimi Linear, arXiv 2510.26692, equations 1 and 6 to 9; Gated DeltaNet-2, arXiv 2605.22791, equations 8 to 10.
    """
    operands = check_operands(
        q, k, v, log_decay=log_decay, erase=erase, write=write, normalize=normalize, initial_state=initial_state,
        scale=scale, validate=validate,
    )  # fmt: skip
    _check_chunk_size(chunk_size)
    choice = _choose(operands, backend, _SCAN_ORDER)
    o, state = _module(choice.backend).scan(operands, chunk_size)
    return o, state if output_final_state else None


def memory_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: State | None,
    *,
    log_decay: Tensor | None = None,
    erase: Tensor | None = None,
    write: Tensor | None = None,
    normalize: bool = False,
    scale: float | None = None,
    backend: str = "auto",
    validate: bool | None = None,
) -> tuple[Tensor, Any]:
    """One token of `memory_scan`: the same operands without their T axis, q and k (B,H,K), v (B,H,V).

    The given state is updated in place and returned; None starts from zero. It must be float32 (float64 when q is).
    Gradients flow, at the price of a copy of the state.
    """
    lift = {"q": q, "k": k, "v": v, "log_decay": log_decay, "erase": erase, "write": write}
    lift = {name: value.unsqueeze(1) if isinstance(value, Tensor) else value for name, value in lift.items()}
    _check_one_token(q=q, k=k, v=v, log_decay=log_decay, erase=erase, write=write)
    operands = check_operands(
        **lift,  # type: ignore[arg-type]
        normalize=normalize,
        initial_state=state,
        scale=scale,
        validate=validate,
        state_name="state",
    )
    for name, held in (("state", operands.state0), ("state[1]", operands.norm0)):
        if held is not None and held.dtype != operands.state_dtype:
            raise TypeError(f"{name} has dtype {held.dtype}; it is updated in place and must be {operands.state_dtype}")
        if held is not None:
            check_writable(name, held)
    if torch.is_grad_enabled() and operands.requires_grad():
        # the old state is needed in the backward pass, and the caller's tensor is about to be overwritten
        copies = {name: value.clone() for name in ("state0", "norm0") if (value := getattr(operands, name)) is not None}
        operands = replace(operands, **copies)
    choice = _choose(operands, backend, _STEP_ORDER)
    o, new = _module(choice.backend).step(operands)
    return o.squeeze(1), _into(state, new)


def explain_backend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    log_decay: Tensor | None = None,
    erase: Tensor | None = None,
    write: Tensor | None = None,
    normalize: bool = False,
    initial_state: State | None = None,
    scale: float | None = None,
    backend: str = "auto",
) -> Choice:
    """Which backend `memory_scan` would run on these operands, and why not the faster ones."""
    operands = check_operands(
        q, k, v, log_decay=log_decay, erase=erase, write=write, normalize=normalize, initial_state=initial_state,
        scale=scale, validate=False,
    )  # fmt: skip
    return _choose(operands, backend, _SCAN_ORDER)


def _choose(operands: Operands, backend: str, order: tuple[str, ...]) -> Choice:
    if backend != "auto":
        if not isinstance(backend, str) or backend not in BACKENDS:
            raise unknown("backend", str(backend), ("auto", *BACKENDS))
        reason = _module(backend).supports(operands)
        if reason is not None:
            raise BadRequest(f"backend={backend!r}: {reason}; use backend='auto'")
        return Choice(backend, {})
    reasons: dict[str, str] = {}
    for name in order:
        reason = _module(name).supports(operands)
        if reason is None and name == "triton" and operands.device.type != "cuda":
            reason = "its interpreter is for tests"
        if reason is None:
            return Choice(name, reasons)
        reasons[name] = reason
    raise BadRequest(f"no backend takes these operands: {reasons}")


def _module(backend: str) -> ModuleType:
    return BACKENDS[backend]


def _check_chunk_size(chunk_size: int | None) -> None:
    if chunk_size is None:
        return
    if type(chunk_size) is not int or chunk_size < 1 or chunk_size & (chunk_size - 1) or chunk_size > 256:
        raise BadRequest(f"chunk_size={chunk_size!r}; use a power of two from 1 to 256, or None for the fastest")


def _check_one_token(**given: Tensor | None) -> None:
    """The shapes of one token, in the caller's terms: the lifted ones would be reported with an axis that he has not."""
    shapes_of = {name: tuple(x.shape) for name, x in given.items() if isinstance(x, Tensor)}
    if not {"q", "v"} <= shapes_of.keys():
        return  # the common check names what is no tensor
    for name, last in (("q", "K"), ("v", "V")):
        if len(shapes_of[name]) != 3:
            raise BadRequest(f"{name} has shape {shapes_of[name]}; for one token it must be (B,H,{last})")
    (B, H, K), V = shapes_of["q"], shapes_of["v"][-1]
    allowed = {"k": [(B, H, K)], "v": [(B, H, V)]}
    allowed |= {"log_decay": [(B, H), (B, H, K)], "erase": [(B, H), (B, H, K)], "write": [(B, H), (B, H, V)]}
    for name, shapes in allowed.items():
        if name in shapes_of and shapes_of[name] not in shapes:
            wanted = " or ".join(map(str, shapes))
            raise BadRequest(f"{name} has shape {shapes_of[name]}; with q of shape {(B, H, K)} it must be {wanted}")


def _into(state: State | None, new: State) -> State:
    """Copy the new state into the tensors that the caller holds."""
    if state is None:
        return new
    for held, fresh in zip(_parts(state), _parts(new), strict=True):
        held.copy_(fresh)
    return state


def _parts(state: State) -> tuple[Tensor, ...]:
    return (state,) if isinstance(state, Tensor) else state
