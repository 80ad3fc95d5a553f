"""Mixtures of experts: a sigmoid router whose bias balances loads, stacked experts, shared experts, latent experts.

Sources: DeepSeek-V3 (2412.19437), sign balancing; Kimi K3 (2607.24653), Stable LatentMoE (eq. 11) and Quantile Balancing.
N tokens, D model width, E experts, F hidden units of an expert.
"""

import math

import torch
from torch import Tensor, nn

from mnemolab.models.channels.mlp import GLU, gated
from mnemolab.models.config import ExpertsConfig, ModelConfig
from mnemolab.models.norms import RMSNorm
from mnemolab.models.outward import Outward
from mnemolab.models.precision import KeepsFp32

__all__ = ["Experts", "MoE", "Router"]


class Router(KeepsFp32):
    """Which experts a token goes to, and with which weights.

    s = sigmoid(W x) in fp32; the top_k of s + bias are chosen, ties for the lower index; weights are s over the sum of the
    chosen s, times scale. `bias` is no parameter: each training forward moves it for the next one.
    """

    bias: Tensor
    load: Tensor

    def __init__(self, width: int, config: ExpertsConfig):
        super().__init__()
        self.top_k, self.scale = config.top_k, config.routed_scale
        self.balance, self.rate = config.balance, config.balance_rate
        self.weight = nn.Parameter(torch.empty(config.experts, width))
        self.register_buffer("bias", torch.zeros(config.experts))
        self.register_buffer("load", torch.zeros(config.experts), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        """x (N,D) -> weights (N,E), zero where an expert is not chosen."""
        with torch.autocast(x.device.type, enabled=False):
            wide = torch.promote_types(x.dtype, torch.float32)
            scores = torch.sigmoid(x.to(wide) @ self.weight.to(wide).T)
            chosen, ranked = self._choose(scores.detach())
            weights = scores * chosen
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20) * self.scale
            if self.training and torch.is_grad_enabled():
                self._rebalance(scores.detach(), chosen, ranked)
        return weights

    def _choose(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """scores (N,E) -> 0/1 mask (N,E), and the biased scores in falling order (N,E)."""
        ranked, order = torch.sort(scores + self.bias.to(scores.dtype), dim=-1, descending=True, stable=True)
        mask = torch.zeros_like(scores).scatter_(-1, order[:, : self.top_k], 1.0)
        return mask, ranked

    @torch.no_grad()
    def _rebalance(self, scores: Tensor, chosen: Tensor, ranked: Tensor) -> None:
        self.load.copy_(chosen.sum(0))
        if self.balance == "sign":
            self.bias.add_(self.rate * torch.sign(self.load.mean() - self.load))
        elif self.balance == "quantile" and self.top_k < len(self.bias):
            self.bias.copy_(quantile_bias(scores, ranked, self.top_k))


def quantile_bias(scores: Tensor, ranked: Tensor, top_k: int) -> Tensor:
    """The bias (E) under which each expert would be among the chosen of N top_k / E tokens; its mean is zero.

    A token's margin for an expert is its raw score less the cut of its biased scores; an expert's bias is minus the margin
    that N top_k / E tokens exceed. Ties are broken by halves: the cut lies midway between the last chosen score and the
    first that is not, and the quantile midway between the two margins around it. With the cut at the latter score itself,
    all tokens that an expert just missed would share one margin, and the quantile would stick to it.
    """
    N, E = scores.shape
    cut = (ranked[:, top_k - 1] + ranked[:, top_k]) / 2
    margins = (scores - cut[:, None]).sort(0, descending=True).values
    quota = min(max(1, round(N * top_k / E)), N)
    bias = -(margins[quota - 1] + margins[min(quota, N - 1)]) / 2
    return bias - bias.mean()


class Experts(nn.Module):
    """E gated MLPs as two stacked matrices. All experts see all tokens: static shapes, and exact zeros for the idle ones.

    inward (E,2F,D), outward (E,F,D).
    """

    def __init__(self, width: int, hidden: int, experts: int, activation: str):
        super().__init__()
        self.activation = activation
        self.inward = nn.Parameter(torch.empty(experts, 2 * hidden, width))
        self.outward = nn.Parameter(torch.empty(experts, hidden, width))

    def forward(self, x: Tensor, weights: Tensor) -> Tensor:
        """x (N,D), weights (N,E) -> sum_e weights_e FFN_e(x) (N,D)."""
        E, twice, D = self.inward.shape
        hidden = gated((x @ self.inward.reshape(E * twice, D).T).unflatten(-1, (E, twice)), self.activation)
        hidden = hidden * weights.to(hidden.dtype)[..., None]
        return hidden.flatten(-2) @ self.outward.reshape(-1, D)


class MoE(nn.Module):
    """Shared experts on x, plus routed experts on x, or on a latent z = W_down x whose sum goes through norm and W_up.

    The router reads x in either case, and shared experts stay at full width (Kimi K3, eq. 11).
    """

    def __init__(self, model: ModelConfig, config: ExpertsConfig):
        super().__init__()
        latent = (config.latent_width or model.width // 2) if model.mlp == "latent_moe" else 0
        hidden = config.expert_width or max(1, model.hidden // (config.top_k + config.shared_experts))
        self.router = Router(model.width, config)
        self.experts = Experts(latent or model.width, hidden, config.experts, model.activation)
        shared = config.shared_experts * hidden
        self.shared = GLU(model.width, shared, model.activation) if shared else None
        self.down = nn.Linear(model.width, latent, bias=False) if latent else None
        self.latent_norm = RMSNorm(latent, model.norm_eps) if latent and config.latent_norm else None
        self.up = Outward(latent, model.width, bias=False) if latent else None

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, -2)
        weights = self.router(rows)
        routed = self.experts(rows if self.down is None else self.down(rows), weights)
        if self.latent_norm is not None:
            routed = self.latent_norm(routed)
        if self.up is not None:
            routed = self.up(routed)
        y = routed.view_as(x)
        return y if self.shared is None else y + self.shared(x)
