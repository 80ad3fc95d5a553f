"""The memory recurrence as two Triton launches a direction, and its autograd function.

Forward: `prepare.py` solves all chunks at once, `forward.py` carries the state through them (alone when there is nothing
to solve). Backward: `backward.py` carries the state's gradient, `gradients.py` treats all chunks at once. Where heads are few,
two more launches a direction (`segments.py`) let the recurrence run on many parts of a sequence at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from mnemolab.kernels.derivatives import once_differentiable
from mnemolab.kernels.operands import EPSILON, Operands, State
from mnemolab.kernels.triton.ahead import Plan, outline
from mnemolab.kernels.triton.backward import backward_kernel
from mnemolab.kernels.triton.forward import forward_kernel
from mnemolab.kernels.triton.gradients import gradient_kernel
from mnemolab.kernels.triton.launch import addresses, launch, specialisation
from mnemolab.kernels.triton.parts import backward_parts, kept_parts, segment_parts
from mnemolab.kernels.triton.prepare import prepare_kernel
from mnemolab.kernels.triton.segments import carry_back_kernel, carry_kernel, combine_kernel
from mnemolab.kernels.triton.table import Config, choose, interpreted, padded
from mnemolab.kernels.triton.workspace import Layout

__all__ = ["Geometry", "run_backward", "run_forward", "scan"]


@dataclass(frozen=True)
class Geometry:
    """What the launches of one scan share. Kinds of decay, erase and write: 0 none, 1 scalar, 2 per channel."""

    B: int
    T: int
    H: int
    K: int
    V: int
    decay: int
    erase: int
    write: int
    normalize: bool
    scale: float
    config: Config
    # compiled kernels of this geometry, by device and what the operands are specialised on; complete where there is a key
    known: dict[Any, dict] = field(default_factory=dict, compare=False, repr=False)
    layouts: dict[str, Layout] = field(default_factory=dict, compare=False, repr=False)

    @property
    def NT(self) -> int:
        return -(-self.T // self.config.C)

    @property
    def span(self) -> int:
        """Chunks of a segment; the last may have fewer."""
        return -(-self.NT // self.config.segments)

    @property
    def segments(self) -> int:
        """At most as many as the table wants: none is empty."""
        return 1 if self.config.segments == 1 else -(-self.NT // self.span)

    def layout(self, what: str) -> Layout:
        """What lies where in the workspace of a forward pass (`saved` for a backward pass, or `forward`), of a
        `backward` pass, or between the launches for `segments`."""
        found = self.layouts.get(what)
        if found is None:
            if what == "segments":
                parts = segment_parts(self)
            else:
                parts = backward_parts(self) if what == "backward" else kept_parts(self, what == "saved")
            found = self.layouts[what] = Layout(parts)
        return found

    @property
    def prepares(self) -> bool:
        return self.erase > 0 or self.decay == 2


def kind(gate: Tensor | None) -> int:
    return 0 if gate is None else gate.dim() - 2


def geometry(
    q: Tensor, v: Tensor, log_decay: Tensor | None, erase: Tensor | None, write: Tensor | None, normalize: bool,
    scale: float, whole: bool = False,
) -> Geometry:  # fmt: skip
    """Kept for eager calls; sizes that torch.compile leaves open cannot be looked up. With `whole` the sequence is not cut."""
    sizes = (*q.shape, v.shape[3])
    make = _known_geometry if all(type(n) is int for n in sizes) else _geometry
    return make(sizes, kind(log_decay), kind(erase), kind(write), normalize, scale, v.dtype, whole)


def _geometry(
    sizes: tuple[int, ...], decay: int, erase: int, write: int, normalize: bool, scale: float, dtype: torch.dtype,
    whole: bool = False,
) -> Geometry:  # fmt: skip
    B, T, H, K, V = sizes
    length = (
        0 if whole else T
    )  # none is too short to be cut, and is compared with nothing that torch.compile would guard
    config = choose(dtype, B * H, length, K, V, decay, erase)
    return Geometry(B, T, H, K, V, decay, erase, write, normalize, scale, config)


_known_geometry = lru_cache(maxsize=1024)(_geometry)


def rows(x: Tensor) -> Tensor:
    """x (B,T,H,D) with unit stride along D: other strides are the kernels' business."""
    return x if x.stride(3) == 1 or x.shape[3] == 1 else x.contiguous()


def flat(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous()


def strides(x: Tensor) -> tuple[int, int, int]:
    return x.stride(0), x.stride(1), x.stride(2)


def new_like(x: Tensor | None) -> Tensor | None:
    """An empty contiguous tensor of x's shape, dtype and device."""
    if x is None:
        return None
    # on the meta device empty_like would import SymPy, half a second and more of a first call
    alike = x.is_contiguous() and not x.is_meta
    return torch.empty_like(x) if alike else torch.empty(x.shape, dtype=x.dtype, device=x.device)


def between_segments(geo: Geometry, device: torch.device, ready: bool) -> tuple[Tensor, Mapping[str, Any]]:
    """Memory for one direction's launches of `segments.py`, and its parts: addresses if the kernels are `ready`."""
    layout = geo.layout("segments")
    memory = layout.empty(device)
    return memory, layout.addresses(memory.data_ptr()) if ready else layout.views(memory)


def combine(
    geo: Geometry, made: dict, state: Any, norm: Any, transitions: Any, between: Mapping[str, Any], reverse: bool
) -> None:
    """From what `carry_kernel` left to what enters every segment; `state` and `norm` enter the first, or in reverse the last."""
    config, BK, FV = geo.config, padded(geo.K), padded(geo.V)
    launch(
        made, combine_kernel, geo.B * geo.H * (FV // config.CV),
        (state, norm, between["L"], between["Lz"], transitions, between["E"], between["Ez"], geo.NT, geo.span),
        lambda: {
            "K": geo.K, "V": geo.V, "BK": BK, "FV": FV, "CV": config.CV, "DECAY": geo.decay, "ERASE": geo.erase,
            "NORM": geo.normalize, "REVERSE": reverse, "STAGES": config.combine_stages,
        },
        config.combine_warps, config.combine_stages,
    )  # fmt: skip


def run_forward(
    geo: Geometry, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, erase: Tensor | None,
    write: Tensor | None, state0: Tensor | None, norm0: Tensor | None, save: bool, plan: Plan | None = None,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:  # fmt: skip
    """o, the final state, the final denominator state, and the workspace, which the backward pass needs if `save`.
    Operands have passed `rows` and `flat`. Every element of every output is written by exactly one program. With a `plan`
    nothing runs."""
    B, T, H, K, V = geo.B, geo.T, geo.H, geo.K, geo.V
    config, NT, BH = geo.config, geo.NT, geo.B * geo.H
    C, BK, FV, P = config.C, padded(K), padded(V), config.precision
    layout = geo.layout("saved" if save else "forward")
    work = layout.empty(q.device)
    o = torch.empty((B, T, H, V), dtype=v.dtype, device=v.device)
    state = torch.empty((B, H, K, V), dtype=torch.float32, device=q.device)
    norm = torch.empty((B, H, K), dtype=torch.float32, device=q.device) if geo.normalize else None
    key = (q.get_device(), save, specialisation(q, k, v, log_decay, erase, write, state0, norm0))
    made = geo.known.get(key) if plan is None else plan
    ready = bool(made)
    given: Any = (q, k, v, log_decay, erase, write, state0, norm0, o, state, norm)
    if not ready:
        if made is None and q.is_cuda and not interpreted():
            compile_ahead(geo, q, k, v, log_decay, erase, write, state0, norm0, save)
        made, part = {} if made is None else made, layout.views(work)
    else:
        given, part = addresses(*given), layout.addresses(work.data_ptr())
    q_, k_, v_, g_, e_, w_, s_, z_, o_, state_, norm_ = given
    segments = geo.segments
    if geo.prepares:
        launch(
            made, prepare_kernel, BH * NT,
            (
                q_, k_, g_, e_, part["W"], part["A"], part["X"], part["Q"], part["K"], part["G"],
                *strides(q), *strides(k), T, H, NT,
            ),
            lambda: {
                "K": K, "BK": BK, "TK": min(BK, config.TK), "C": C, "DECAY": geo.decay, "ERASE": geo.erase,
                "P_NATIVE": P.native, "P_PAIR": P.pair, "P_SUM": P.sums, "P_INVERSE": P.inverse, "P_SMALL": P.small,
            },
            config.prepare_warps, 1,
        )  # fmt: skip
    if segments > 1:
        _memory, between = between_segments(geo, q.device, ready)
        launch(
            made, carry_kernel,
            BH * ((segments - 1) * (FV // config.BV) + (segments - 2) * -(-BK // config.BV) * (geo.erase > 0)),
            (
                k_, v_, g_, w_, s_, z_, part["W"], part["X"], part["K"], part["G"], between["L"], between["Lz"], part["M"],
                *strides(k), *strides(v), T, H, NT, geo.span,
            ),
            lambda: {
                "K": K, "V": V, "BK": BK, "BV": config.BV, "FV": FV, "C": C,
                "DECAY": geo.decay, "ERASE": geo.erase, "WRITE": geo.write, "NORM": geo.normalize,
                "P_STATE": P.state, "P_SMALL": P.small, "P_SUM": P.sums, "STAGES": config.recurrence_stages,
            },
            config.recurrence_warps, config.recurrence_stages,
        )  # fmt: skip
        combine(geo, made, s_, z_, part["M"], between, reverse=False)
        s_, z_ = between["E"], between["Ez"]
    launch(
        made, forward_kernel, BH * segments * (FV // config.BV),
        (
            q_, k_, v_, g_, w_, s_, z_, part["W"], part["A"], part["X"], part["Q"], part["K"], part["G"],
            o_, state_, norm_, part["S"], part["U"], part["den"], part["z"], part["r"],
            *strides(q), *strides(k), *strides(v), T, H, NT, geo.span, geo.scale, EPSILON,
        ),
        lambda: {
            "K": K, "V": V, "BK": BK, "BV": config.BV, "FV": FV, "GV": config.GV, "C": C,
            "DECAY": geo.decay, "ERASE": geo.erase, "WRITE": geo.write, "NORM": geo.normalize, "SAVE": save,
            "SEGMENTED": segments > 1,
            "P_NATIVE": P.native, "P_STATE": P.state, "P_SMALL": P.small, "P_SUM": P.sums, "STAGES": config.recurrence_stages,
        },
        config.recurrence_warps, config.recurrence_stages,
    )  # fmt: skip
    if made:
        geo.known[key] = made
    return o, state, norm, work


def run_backward(
    geo: Geometry, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, erase: Tensor | None,
    write: Tensor | None, work: Tensor, o: Tensor | None, do: Tensor, dstate: Tensor | None, dnorm: Tensor | None,
    dtypes: tuple[torch.dtype | None, torch.dtype | None], plan: Plan | None = None,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Gradients of q, k, v, log_decay, erase, write, state0, norm0; `work` is the forward pass's workspace, `dtypes` are
    those of the last two, None if absent. With a `plan` nothing runs."""
    B, T, H, K, V = geo.B, geo.T, geo.H, geo.K, geo.V
    config, NT, BH = geo.config, geo.NT, geo.B * geo.H
    C, BK, FV, P = config.C, padded(K), padded(V), config.precision
    saved, layout = geo.layout("saved"), geo.layout("backward")
    passed = layout.empty(q.device)
    dq, dk, dv, dg, de, dw = (new_like(x) for x in (q, k, v, log_decay, erase, write))
    ds0 = None if dtypes[0] is None else torch.empty((B, H, K, V), dtype=dtypes[0], device=q.device)
    dz0 = None if dtypes[1] is None else torch.empty((B, H, K), dtype=dtypes[1], device=q.device)
    key = (q.get_device(), specialisation(q, k, v, log_decay, erase, write, do, dstate, dnorm), dtypes)
    made = geo.known.get(key) if plan is None else plan
    ready = bool(made)
    given: Any = (
        q, k, v, log_decay, erase, write, o, do, dstate, dnorm, dq, dk, dv, dg, de, dw, ds0, dz0,
    )  # fmt: skip
    if not ready:
        made = {} if made is None else made
        kept, part = saved.views(work), layout.views(passed)
    else:
        given = addresses(*given)
        kept, part = saved.addresses(work.data_ptr()), layout.addresses(passed.data_ptr())
    q_, k_, v_, g_, e_, w_, o_, do_, dstate_, dnorm_, dq_, dk_, dv_, dg_, de_, dw_, ds0_, dz0_ = given
    segments = geo.segments
    if segments > 1:
        _memory, between = between_segments(geo, q.device, ready)
        launch(
            made, carry_back_kernel, BH * (segments - 1) * (FV // config.BV),
            (
                q_, k_, g_, o_, do_, kept["den"], kept["W"], kept["A"], kept["Q"], kept["K"], kept["G"],
                dstate_, dnorm_, between["L"], between["Lz"], *strides(q), *strides(k), T, H, NT, geo.span, geo.scale,
            ),
            lambda: {
                "K": K, "V": V, "BK": BK, "BV": config.BV, "FV": FV, "C": C, "DECAY": geo.decay, "ERASE": geo.erase, "NORM": geo.normalize,
                "P_STATE": P.state, "P_SMALL": P.small, "P_SUM": P.sums, "STAGES": config.recurrence_stages,
            },
            config.recurrence_warps, config.recurrence_stages,
        )  # fmt: skip
        combine(geo, made, dstate_, dnorm_, kept["M"], between, reverse=True)
        dstate_, dnorm_ = between["E"], between["Ez"]
    launch(
        made, backward_kernel, BH * segments * (FV // config.BV),
        (
            q_, k_, g_, o_, do_, kept["den"], kept["W"], kept["A"], kept["Q"], kept["K"], kept["G"],
            dstate_, dnorm_, part["D"], part["dU"], part["dz"], part["dr"], part["dden"], ds0_, dz0_,
            *strides(q), *strides(k), T, H, NT, geo.span, geo.scale,
        ),
        lambda: {
            "K": K, "V": V, "BK": BK, "BV": config.BV, "FV": FV, "GV": config.GV, "C": C, "DECAY": geo.decay, "ERASE": geo.erase, "NORM": geo.normalize,
            "SEGMENTED": segments > 1,
            "P_STATE": P.state, "P_SMALL": P.small, "P_SUM": P.sums, "STAGES": config.recurrence_stages,
        },
        config.recurrence_warps, config.recurrence_stages,
    )  # fmt: skip
    launch(
        made, gradient_kernel, BH * -(-NT // config.gradient_run),
        (
            q_, k_, v_, g_, e_, w_, do_, kept["den"], kept["A"], kept["X"], kept["S"], kept["U"], part["D"], part["dU"],
            kept["z"], kept["r"], part["dz"], part["dr"], part["dden"], dq_, dk_, dv_, dg_, de_, dw_,
            *strides(q), *strides(k), *strides(v), T, H, NT, geo.scale,
        ),
        lambda: {
            "K": K, "V": V, "BK": BK, "FV": FV, "C": C, "GV": config.GV, "RUN": config.gradient_run,
            "DECAY": geo.decay, "ERASE": geo.erase, "WRITE": geo.write, "NORM": geo.normalize, "P_NATIVE": P.native, "P_PAIR": P.pair,
            "P_SUM": P.sums, "P_GATE": P.gate, "STAGES": config.gradient_stages, "V_STAGES": config.value_stages,
        },
        config.gradient_warps, config.gradient_stages,
    )  # fmt: skip
    if made:
        geo.known[key] = made
    return dq, dk, dv, dg, de, dw, ds0, dz0


def compile_ahead(
    geo: Geometry, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, erase: Tensor | None,
    write: Tensor | None, state0: Tensor | None, norm0: Tensor | None, save: bool,
) -> None:  # fmt: skip
    """Set the compilers of a new scan's kernels to work at once; with `save` those of its backward pass too, as it is when no
    gradient reaches the final state."""
    plan, device = Plan(), q.get_device()
    q, k, v = outline(q), outline(k), outline(v)
    gates = [None if x is None else outline(x) for x in (log_decay, erase, write, state0, norm0)]
    o, _, _, work = run_forward(geo, q, k, v, *gates, save, plan)
    if save:
        dtypes = (None if state0 is None else state0.dtype, None if norm0 is None else norm0.dtype)
        do = torch.empty(v.shape, dtype=v.dtype, device=v.device)
        run_backward(geo, q, k, v, *gates[:3], work, o if geo.normalize else None, do, None, None, dtypes, plan)
    plan.begin(device)


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, erase: Tensor | None,
        write: Tensor | None, state0: Tensor | None, norm0: Tensor | None, geo: Geometry,
    ) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
        q, k, v = rows(q), rows(k), rows(v)
        log_decay, erase, write, state0, norm0 = (flat(x) for x in (log_decay, erase, write, state0, norm0))
        o, state, norm, work = run_forward(geo, q, k, v, log_decay, erase, write, state0, norm0, save=True)
        ctx.geo = geo
        ctx.dtypes = (None if state0 is None else state0.dtype, None if norm0 is None else norm0.dtype)
        # only the denominator's gradient reads the output again
        ctx.save_for_backward(q, k, v, log_decay, erase, write, o if geo.normalize else None, work)
        ctx.set_materialize_grads(False)
        return o, state, norm

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do: Tensor | None, dstate: Tensor | None, dnorm: Tensor | None) -> tuple[Tensor | None, ...]:
        q, k, v, log_decay, erase, write, o, work = ctx.saved_tensors
        do = torch.zeros(v.shape, dtype=v.dtype, device=v.device) if do is None else do.contiguous()
        gradients = run_backward(
            ctx.geo, q, k, v, log_decay, erase, write, work, o, do, flat(dstate), flat(dnorm), ctx.dtypes
        )  # fmt: skip
        return *gradients, None


def scan(operands: Operands, chunk_size: int | None = None) -> tuple[Tensor, State]:
    """o (B,T,H,V) in v.dtype and the final state in float32, or the pair with the denominator's state.

    The chunk is the table's: `chunk_size` is for backends that take any.
    """
    x = operands
    if x.q.numel() == 0 or x.v.numel() == 0:
        return _without_tokens(x)
    gates = (x.log_decay, x.erase, x.write, x.state0, x.norm0)
    if torch.compiler.is_compiling():
        from mnemolab.kernels.triton.library import compiled_scan

        o, state, norm = compiled_scan(x.q, x.k, x.v, *gates, x.normalize, x.scale)
        return o, (state, norm) if x.normalize else state
    geo = geometry(x.q, x.v, x.log_decay, x.erase, x.write, x.normalize, x.scale)
    if x.q.is_cuda and x.q.get_device() != torch.cuda.current_device():
        with torch.cuda.device(x.q.device):
            return scan(x)
    if torch.is_grad_enabled() and x.requires_grad():
        o, state, norm = _Scan.apply(x.q, x.k, x.v, *gates, geo)  # type: ignore[misc]
    else:
        o, state, norm, _ = run_forward(geo, rows(x.q), rows(x.k), rows(x.v), *map(flat, gates), save=False)
    return o, state if norm is None else (state, norm)


def _without_tokens(x: Operands) -> tuple[Tensor, State]:
    """No token or no sequence: an empty output, through which every operand gets its empty gradient, and the state."""
    o = x.v * 1
    for value in (x.q, x.k, x.log_decay, x.erase, x.write):
        if value is not None:
            o = o * (value if value.dim() == 3 else value.sum(-1)).unsqueeze(-1)
    state = x.first_state()
    state = (state[..., :-1].clone(), state[..., -1].clone()) if x.normalize else state.clone()
    return o.to(x.v.dtype), state
