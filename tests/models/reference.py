"""The published stages written out in plain float64, one token after another, from a model's weights alone.

Every constant stands here as its paper has it; nothing is read from a config. Sources: see `mnemolab.models.lineage`.
B batch, T time, D width, H heads, d head_dim. `p` maps names below a module to weights.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

Weights = dict[str, Tensor]


def below(p: Weights, prefix: str) -> Weights:
    return {name[len(prefix) + 1 :]: value for name, value in p.items() if name.startswith(prefix + ".")}


def rms(x: Tensor, weight: Tensor, eps: float = 1e-5) -> Tensor:
    return weight * x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


def unit(x: Tensor) -> Tensor:
    return x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()


def silu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


def conv4(p: Weights, x: Tensor, bias: bool = False) -> Tensor:
    """Four taps, the last of them on the present token, then SiLU."""
    taps, (_, T, _) = p["conv.weight"], x.shape
    assert taps.shape[1] == 4 and ("conv.bias" in p) == bias
    padded = F.pad(x, (0, 0, 3, 0))
    return silu(sum(padded[:, w : w + T] * taps[:, w] for w in range(4)) + p.get("conv.bias", 0.0))


def recurrence(q: Tensor, k: Tensor, z: Tensor, e: Tensor, log_decay: Tensor, scale: float) -> Tensor:
    """q, k, e, log_decay (B,T,H,K), z (B,T,H,V): decay, subtract what the erase key reads, write along k, read with q."""
    S = q.new_zeros(*q.shape[:1], *q.shape[2:], z.shape[-1])
    out = []
    for t in range(q.shape[1]):
        S = S * log_decay[:, t].exp().unsqueeze(-1)
        rest = z[:, t] - torch.einsum("bhk,bhkv->bhv", e[:, t], S)
        S = S + torch.einsum("bhk,bhv->bhkv", k[:, t], rest)
        out.append(scale * torch.einsum("bhk,bhkv->bhv", q[:, t], S))
    return torch.stack(out, 1)


def softmax_attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """(B,T,H,*) -> (B,T,H*V)"""
    scores = scale * torch.einsum("bthk,bshk->bhts", q, k)
    future = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool).triu(1)
    return torch.einsum("bhts,bshv->bthv", scores.masked_fill(future, -math.inf).softmax(-1), v).flatten(2)


# token mixers: (p, x (B,T,D), H, d) -> (B,T,D)


def gpt2(p, x, H, d):
    q, k, v = (u.unflatten(-1, (H, d)) for u in (x @ p["inward.weight"].T + p["inward.bias"]).chunk(3, -1))
    return softmax_attention(q, k, v, d**-0.5) @ p["outward.weight"].T + p["outward.bias"]


def linear_attention(p, x, H, d):
    q, k, v = (u.unflatten(-1, (H, d)) for u in (x @ p["inward.weight"].T).chunk(3, -1))
    q, k = F.elu(q) + 1, F.elu(k) + 1
    S = torch.einsum("bthk,bthv->bthkv", k, v).cumsum(1)
    n = torch.einsum("bthk,bthk->bth", q, k.cumsum(1)) + 1e-6
    return (torch.einsum("bthk,bthkv->bthv", q, S) / n[..., None]).flatten(2) @ p["outward.weight"].T


def mamba2(p, x, H, d):
    """One C and one B for all heads, twice as many value channels as key channels, gate before one norm over all heads."""
    inner = 2 * d * H
    C, B, u, z = (x @ p["inward.weight"].T).split((d, d, inner, inner), -1)
    C, B, u = conv4(p, torch.cat((C, B, u), -1), bias=True).split((d, d, inner), -1)
    C, B, u = C[:, :, None].expand(-1, -1, H, -1), B[:, :, None].expand(-1, -1, H, -1), u.unflatten(-1, (H, 2 * d))
    step = F.softplus(x @ p["control.weight"].T + p["decay.dt_bias"])[..., None]
    log_decay = (-p["decay.A_log"].exp()[:, None] * step).expand_as(B)
    y = recurrence(C, B, step * u, torch.zeros_like(B), log_decay, 1.0) + p["skip"][:, None] * u
    assert p["norm.weight"].shape == (inner,)
    return rms(y.flatten(2) * silu(z), p["norm.weight"]) @ p["outward.weight"].T


def gla(p, x, H, d):
    half = d // 2
    q, k, v, g = (x @ p["inward.weight"].T).split((H * half, H * half, H * d, H * d), -1)
    q, k, v, g = (u.unflatten(-1, (H, -1)) for u in (q, k, v, g))
    assert p["control.weight"].shape[0] == 16
    u = x @ p["control.weight"].T @ p["decay_up.weight"].T + p["decay.dt_bias"]
    log_decay = torch.log(torch.sigmoid(u)).unflatten(-1, (H, half)) / 16
    o = recurrence(q, k, v, torch.zeros_like(k), log_decay, half**-0.5)
    return (rms(o, p["norm.weight"]) * silu(g)).flatten(2) @ p["outward.weight"].T


def keys_and_values(p, x, H, d, expand, gate):
    """q, k of unit length and v after the convolution, and the last `gate` outputs of the projection."""
    mixed = x @ p["inward.weight"].T
    q, k, v = conv4(p, mixed[..., : mixed.shape[-1] - gate]).split((H * d, H * d, expand * H * d), -1)
    q, k, v = (u.unflatten(-1, (H, -1)) for u in (q, k, v))
    return unit(q), unit(k), v, mixed[..., mixed.shape[-1] - gate :]


def softplus_decay(p, u):
    """u (B,T,H,K) or (B,T,H,1)"""
    return -p["decay.A_log"].exp()[:, None] * F.softplus(u)


def deltanet(p, x, H, d):
    q, k, v, _ = keys_and_values(p, x, H, d, expand=1, gate=0)
    beta = torch.sigmoid(x @ p["control.weight"].T)[..., None]
    o = recurrence(q, k, beta * v, beta * k, torch.zeros_like(k), d**-0.5)
    return rms(o, p["norm.weight"]).flatten(2) @ p["outward.weight"].T


def gated_deltanet(p, x, H, d):
    q, k, v, g = keys_and_values(p, x, H, d, expand=2, gate=2 * H * d)
    u, beta = (x @ p["control.weight"].T).split((H, H), -1)
    beta = torch.sigmoid(beta)[..., None]
    log_decay = softplus_decay(p, (u + p["decay.dt_bias"])[..., None]).expand_as(k)
    o = rms(recurrence(q, k, beta * v, beta * k, log_decay, d**-0.5), p["norm.weight"])
    return (o.flatten(2) * silu(g)) @ p["outward.weight"].T


def channel_rates(p, x, H, d):
    """The low-rank projection of rank d, and what follows it in the fused matrix."""
    u, rest = (x @ p["control.weight"].T).tensor_split((d,), -1)
    return (u @ p["decay_up.weight"].T + p["decay.dt_bias"]).unflatten(-1, (H, d)), rest


def kda(p, x, H, d):
    q, k, v, g = keys_and_values(p, x, H, d, expand=1, gate=d)
    u, beta = channel_rates(p, x, H, d)
    beta = torch.sigmoid(beta)[..., None]
    o = rms(recurrence(q, k, beta * v, beta * k, softplus_decay(p, u), d**-0.5), p["norm.weight"])
    assert "gate_up.bias" not in p
    return (o.flatten(2) * torch.sigmoid(g @ p["gate_up.weight"].T)) @ p["outward.weight"].T


def bounded_kda(p, x, H, d):
    """Kimi K3: the decay ends at -5, the gate has full rank."""
    q, k, v, g = keys_and_values(p, x, H, d, expand=1, gate=H * d)
    u, beta = channel_rates(p, x, H, d)
    beta = torch.sigmoid(beta)[..., None]
    log_decay = -5 * torch.sigmoid(p["decay.A_log"].exp()[:, None] * u)
    o = rms(recurrence(q, k, beta * v, beta * k, log_decay, d**-0.5), p["norm.weight"])
    return (o.flatten(2) * torch.sigmoid(g)) @ p["outward.weight"].T


def gated_deltanet2(p, x, H, d):
    q, k, v, g = keys_and_values(p, x, H, d, expand=1, gate=d)
    u, gates = channel_rates(p, x, H, d)
    b, w = (torch.sigmoid(part).unflatten(-1, (H, d)) for part in gates.chunk(2, -1))
    o = rms(recurrence(q, k, w * v, b * k, softplus_decay(p, u), d**-0.5), p["norm.weight"])
    return (o.flatten(2) * silu(g @ p["gate_up.weight"].T + p["gate_up.bias"])) @ p["outward.weight"].T


def latent_attention(p, x, H, d, gated_with_low_rank_queries=False):
    """d channels per head from the latent, d / 2 that all heads share; norms of what is narrow have an eps of 1e-6."""
    shared, mixed = d // 2, x @ p["inward.weight"].T
    rank = p["latent_norm.weight"].shape[0]
    gate = H * d if gated_with_low_rank_queries else 0
    q, c, kappa, g = mixed.split((mixed.shape[-1] - rank - shared - gate, rank, shared, gate), -1)
    if gated_with_low_rank_queries:
        q = rms(q, p["query_norm.weight"], 1e-6) @ p["query_up.weight"].T
    k, v = (rms(c, p["latent_norm.weight"], 1e-6) @ p["expand.weight"].T).unflatten(-1, (H, 2 * d)).chunk(2, -1)
    k = torch.cat((k, kappa[:, :, None].expand(-1, -1, H, -1)), -1)
    o = softmax_attention(q.unflatten(-1, (H, d + shared)), k, v, (d + shared) ** -0.5)
    return (o * torch.sigmoid(g) if gated_with_low_rank_queries else o) @ p["outward.weight"].T


def gated_latent_attention(p, x, H, d):
    return latent_attention(p, x, H, d, gated_with_low_rank_queries=True)


def recurrent(cell):
    """torch's gate order: i, f, g, o for an LSTM, r, z, n for a GRU."""

    def run(p, x, H, d):
        h = c = x.new_zeros(x.shape[0], H * d)
        out = []
        for t in range(x.shape[1]):
            a = x[:, t] @ p["cell.weight_ih_l0"].T + p["cell.bias_ih_l0"]
            b = h @ p["cell.weight_hh_l0"].T + p["cell.bias_hh_l0"]
            if cell == "rnn":
                h = torch.tanh(a + b)
            elif cell == "lstm":
                i, f, g, o = (a + b).chunk(4, -1)
                c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
                h = torch.sigmoid(o) * torch.tanh(c)
            else:
                (ar, az, an), (br, bz, bn) = a.chunk(3, -1), b.chunk(3, -1)
                z = torch.sigmoid(az + bz)
                h = (1 - z) * torch.tanh(an + torch.sigmoid(ar + br) * bn) + z * h
            out.append(h)
        return torch.stack(out, 1) @ p["outward.weight"].T

    return run


# channel mixers: (p, x) -> (B,T,D)


def gelu_mlp(p, x, bias=False):
    assert p["inward.weight"].shape[0] == 4 * x.shape[-1] and ("inward.bias" in p) == ("outward.bias" in p) == bias
    h = x @ p["inward.weight"].T + p.get("inward.bias", 0.0)
    h = h * (1 + torch.erf(h / 2**0.5)) / 2
    return h @ p["outward.weight"].T + p.get("outward.bias", 0.0)


def gelu_mlp_with_bias(p, x):
    return gelu_mlp(p, x, bias=True)


def swish(g, u):
    return silu(g) * u


def situ(g, u):
    return 4 * torch.tanh(g / 4) * torch.sigmoid(g) * 25 * torch.tanh(u / 25)


def glu(activation):
    return lambda p, x: activation(*(x @ p["inward.weight"].T).chunk(2, -1)) @ p["outward.weight"].T


def experts(activation, scale, shared, latent):
    """The two experts of the highest biased score, weighted by the scores themselves, and shared experts of full width."""

    def run(p, x):
        rows = x.flatten(0, 1)
        score = torch.sigmoid(rows @ p["router.weight"].T)
        chosen = (score + p["router.bias"]).topk(2, -1).indices
        weight = score.gather(-1, chosen)
        weight = scale * weight / (weight.sum(-1, keepdim=True) + 1e-20)
        z = rows @ p["down.weight"].T if latent else rows
        y = []
        for i in range(len(rows)):
            told = 0
            for w, j in zip(weight[i], chosen[i], strict=True):
                g, u = (p["experts.inward"][j] @ z[i]).chunk(2)
                told = told + w * (activation(g, u) @ p["experts.outward"][j])
            y.append(told)
        y = torch.stack(y)
        if latent:
            y = rms(y, p["latent_norm.weight"]) @ p["up.weight"].T
        assert p["shared.inward.weight"].shape[0] == shared * p["experts.inward"].shape[1]
        return y.view_as(x) + glu(activation)(below(p, "shared"), x)

    return run


# whole models


class Sum:
    def __init__(self, h):
        self.h = h

    def read(self):
        return self.h

    def write(self, y):
        self.h = self.h + y


class Attended:
    """Kimi K3's residuals: finished blocks, the sum under way, and a query per site; blocks of `size` sub-layers."""

    def __init__(self, p, size, h):
        self.p, self.size, self.blocks, self.running, self.site, self.written = p, size, [h], None, 0, 0

    def read(self):
        values = torch.stack(self.blocks if self.running is None else [*self.blocks, self.running])
        score = (rms(values, self.p["gain"][self.site]) * self.p["query"][self.site]).sum(-1)
        self.site += 1
        return (score.softmax(0)[..., None] * values).sum(0)

    def write(self, y):
        if self.written and self.written % self.size == 0:
            self.blocks.append(self.running)
            self.running = None
        self.running = y if self.running is None else self.running + y
        self.written += 1


SWIGLU = glu(swish)
KIMI_EXPERTS, K3_EXPERTS = experts(swish, 2.446, 1, latent=False), experts(situ, 1.0, 2, latent=True)
# name: (mixer, channel mixer) of each layer
LAYERS = {
    "gpt2": [(gpt2, gelu_mlp_with_bias)] * 2,
    **{name: [(recurrent(name), gelu_mlp)] * 2 for name in ("rnn", "lstm", "gru")},
    **{
        mixer.__name__: [(mixer, SWIGLU)] * 2
        for mixer in (linear_attention, mamba2, gla, deltanet, gated_deltanet, kda, gated_deltanet2)
    },
    "kimi_linear": [(kda, SWIGLU), (kda, KIMI_EXPERTS), (kda, KIMI_EXPERTS), (latent_attention, KIMI_EXPERTS)],
    "kimi_k3": [(bounded_kda, glu(situ))]
    + [(bounded_kda, K3_EXPERTS)] * 2
    + [(gated_latent_attention, K3_EXPERTS)] * 2,
}


def logits(name: str, p: Weights, tokens: Tensor, H: int, d: int) -> Tensor:
    """The published stage `name` on tokens (B,T)."""

    def norm(prefix, x):
        if name == "gpt2":
            centred = x - x.mean(-1, keepdim=True)
            return rms(centred, p[f"{prefix}.weight"]) + p[f"{prefix}.bias"]
        return rms(x, p[f"{prefix}.weight"])

    h = p["embedding.weight"][tokens]
    if name in ("gpt2", "linear_attention"):
        h = h + p["positions.weight"][: tokens.shape[1]]
    stream = Attended(below(p, "residual"), 2, h) if name == "kimi_k3" else Sum(h)
    for layer, (mixer, channel) in enumerate(LAYERS[name]):
        at = f"blocks.{layer}"
        stream.write(mixer(below(p, f"{at}.mixer"), norm(f"{at}.norm1", stream.read()), H, d))
        stream.write(channel(below(p, f"{at}.channel"), norm(f"{at}.norm2", stream.read())))
    tied = not name.startswith("kimi")
    return norm("norm", stream.read()) @ p["embedding.weight" if tied else "head.weight"].T
