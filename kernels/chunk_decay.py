"""Decay inside a chunk of C tokens: products of factors in [0, 1], never a quotient and never a positive exponent.

Tiles have shape (M,C,·): M = chunks x batch x heads. With lambda = exp(log_decay), the weight of token j at row i >= j is
the product of lambda over j < u <= i. The usual exp(G_i - G_j), a difference of prefix sums, is infinite for strong gates,
NaN for -inf and wrong after a gate of -1e4; a product of the lambdas between j and i is none of these.

`pairs` gives A_ij = sum_d q_id k_jd weight_ijd (j <= i) and T_ij = sum_d e_id k_jd weight_ijd (j < i). T comes as blocks
below the diagonal: the one of size h holds the pairs that part when a block of 2h rows is halved.
`pairs_grad` takes the cotangents and gives those of q, e, k and of log_decay. The last is formed without cancellation: the
gate of token t collects the pairs i >= t > j that contain it, and no other term.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

__all__ = ["ChannelDecay", "ScalarDecay", "decay_of", "through_states", "times"]

# A (M,C,C) and the factors dO, dz, R (M,C,V) of its cotangent dA = lower(dO R^T) and of dT = -strict(dz R^T)
PairFactors = tuple[Tensor, Tensor, Tensor | None, Tensor]
# cotangents of q, e (None without erase) and k
PairGrads = tuple[Tensor, Tensor | None, Tensor]


def block_sizes(C: int) -> list[int]:
    """1, 2, 4, ... C/2: the halves of the binary split."""
    return [1 << n for n in range(C.bit_length() - 1)]


def halves(x: Tensor, h: int) -> tuple[Tensor, Tensor]:
    """(M,C,D) -> the first and the second h rows of every block of 2h rows, each (M*C/(2h),h,D), as views."""
    M, C, D = x.shape
    pairs = x.view(M * C // (2 * h), 2, h, D)
    return pairs[:, 0], pairs[:, 1]


def below_diagonal(x: Tensor, h: int) -> Tensor:
    """(M,C,C) -> view (M,C/(2h),h,h) of the blocks of size h just below the diagonal."""
    M, C, _ = x.shape
    blocks = x.view(M, C // (2 * h), 2 * h, C // (2 * h), 2 * h).diagonal(dim1=1, dim2=3)
    return blocks[:, h:, :h].permute(0, 3, 1, 2)


def later_rows(x: Tensor) -> Tensor:
    """y_t = sum over rows i >= t of x (M,C,D)."""
    return _product(torch.ones(x.shape[1], x.shape[1], dtype=x.dtype, device=x.device).triu().expand(len(x), -1, -1), x)


def earlier_rows(x: Tensor) -> Tensor:
    """y_t = sum over rows j < t of x (M,C,D)."""
    return _product(
        torch.ones(x.shape[1], x.shape[1], dtype=x.dtype, device=x.device).tril(-1).expand(len(x), -1, -1), x
    )


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Matrix products (M,I,J) (M,J,D); a sum of outer products for J <= 2, where a batched product takes 4 to 20 times as long."""
    if a.shape[-1] > 2:
        return torch.bmm(a, b)
    result = a[:, :, :1] * b[:, :1]
    return result.addcmul_(a[:, :, 1:], b[:, 1:]) if a.shape[-1] == 2 else result


def decay_of(
    log_decay: Tensor | None, like: Tensor, head: Tensor | None = None, tail: Tensor | None = None
) -> "ScalarDecay | ChannelDecay":
    """The decay of the tiles `like` (M,C,K), for log_decay None, (M,C,1) or (M,C,K); head, tail: what `kept` returned."""
    if log_decay is not None and log_decay.shape[-1] > 1:
        return ChannelDecay(log_decay, head, tail)
    return ScalarDecay(log_decay, like)


def times(x: Tensor, factor: Tensor | None) -> Tensor:
    """x * factor, where None is 1."""
    return x if factor is None else x * factor


def through_states(whole: Tensor, rows: Tensor, columns: Tensor, starts: Tensor, ends: Tensor) -> Tensor:
    """Cotangent of log_decay for the parts that pass through a state.

    whole (M,1 or K); rows (M,C,K): what row i took from the entering state, through the gates up to i; columns (M,C,K):
    what row j left in the last state, through the gates after j; starts, ends (M,K,V): the entering state and the
    cotangent of the last.
    """
    kept = (starts * ends).sum(-1)
    if whole.shape[-1] == 1:
        rows, columns, kept = (x.sum(-1, keepdim=True) for x in (rows, columns, kept))
    return later_rows(rows).add_(earlier_rows(columns)).add_((whole * kept).unsqueeze(1))


class ScalarDecay:
    """One decay per token and head, or none: the weight is a matrix outside the dot products.

    head (M,C,1): from the chunk's start to row i, inclusive; tail (M,C,1): from after row j to the chunk's end;
    whole (M,1). All three are None without decay.
    """

    def __init__(self, log_decay: Tensor | None, like: Tensor):
        """log_decay (M,C,1) or None; `like` (M,C,·) gives sizes and dtype."""
        M, C, _ = like.shape
        lower = torch.ones(C, C, dtype=like.dtype, device=like.device).tril()
        self.head = self.tail = self.whole = None
        self.weight, self.strict = lower, lower.tril(-1)
        self.below = self.strict
        if log_decay is None:
            return
        kept = log_decay.exp()
        weight = torch.zeros(M, C, C, dtype=like.dtype, device=like.device)
        weight.diagonal(dim1=1, dim2=2).fill_(1)
        for i in range(1, C):
            torch.mul(weight[:, i - 1, :i], kept[:, i], out=weight[:, i, :i])
        self.weight, self.strict = weight, weight * self.below
        self.head = weight[:, :, :1] * kept[:, :1]
        self.tail = weight[:, -1, :, None]
        self.whole = self.head[:, -1]

    def pairs(self, q: Tensor, e: Tensor | None, k: Tensor) -> tuple[Tensor, list[Tensor]]:
        # a product with a later token may overflow, and inf times a weight of 0 would reach earlier outputs as NaN
        A = torch.bmm(q, k.mT).tril_().mul_(self.weight)
        if e is None:
            return A, []
        # only what lies strictly below the diagonal is read
        T = torch.bmm(e, k.mT).mul_(self.weight)
        return A, [below_diagonal(T, h).reshape(-1, h, h) for h in block_sizes(q.shape[1])]

    def pairs_grad(self, q: Tensor, e: Tensor | None, k: Tensor, pairs: PairFactors, grads: PairGrads) -> Tensor | None:
        """Adds to the cotangents of q, e and k; returns that of log_decay (M,C,1), None without decay."""
        A, dO, dz, R = pairs
        dq, de, dk = grads
        dA = torch.bmm(dO, R.mT).tril_()
        inside = dA * A if self.head is not None else None
        dA.mul_(self.weight)
        dq.baddbmm_(dA, k)
        dk.baddbmm_(dA.mT, q)
        if e is not None and dz is not None and de is not None:
            dT = torch.bmm(dz, R.mT).tril_(-1).mul_(self.strict)
            de.baddbmm_(dT, k, alpha=-1)
            dk.baddbmm_(dT.mT, e, alpha=-1)
            if inside is not None:
                inside.addcmul_(dT, torch.bmm(e, k.mT).tril_(-1), value=-1)
        return None if inside is None else later_rows(inside).mul_(self.below).sum(-1, keepdim=True)


class ChannelDecay:
    """One decay per key channel: the weight stays inside the dot products.

    Binary split: when a block of 2h rows is halved, weight_ij = (lambda from the second half's start to i) x (lambda from
    after j to the first half's end), so each half is scaled on its own and the pairs are one matrix product. head, tail
    (M,C,K) and whole (M,K) as in ScalarDecay.
    """

    def __init__(self, log_decay: Tensor, head: Tensor | None = None, tail: Tensor | None = None):
        """log_decay (M,C,K); head and tail, if not given, are there once the levels have been walked."""
        self.log_decay, self.head, self.tail = log_decay, head, tail

    @property
    def whole(self) -> Tensor | None:
        return None if self.head is None else self.head[:, -1]

    def levels(self) -> Iterator[tuple[int, Tensor, Tensor | None]]:
        """h, products up to each row of the second halves, products after each row of the first (None: ones).

        The tensors are overwritten by the next level.
        """
        head, tail = self.log_decay.exp(), torch.ones_like(self.log_decay)
        for h in block_sizes(head.shape[1]):
            (head1, head2), (tail1, _) = halves(head, h), halves(tail, h)
            yield h, head2, tail1 if h > 1 else None
            tail1.mul_(head2[:, -1:])
            head2.mul_(head1[:, -1:])
        self.head, self.tail = head, tail

    def pairs(self, q: Tensor, e: Tensor | None, k: Tensor) -> tuple[Tensor, list[Tensor]]:
        M, C, _ = q.shape
        A = q.new_zeros(M, C, C)
        torch.sum(q * k, -1, out=A.diagonal(dim1=1, dim2=2))
        blocks = []
        for h, head2, tail1 in self.levels():
            right = times(halves(k, h)[0], tail1).mT
            part = torch.bmm(halves(q, h)[1] * head2, right)
            below_diagonal(A, h).copy_(part.view(M, C // (2 * h), h, h))
            if e is not None:
                blocks.append(torch.bmm(halves(e, h)[1] * head2, right))
        return A, blocks

    def pairs_grad(self, q: Tensor, e: Tensor | None, k: Tensor, pairs: PairFactors, grads: PairGrads) -> Tensor:
        """Adds to the cotangents of q, e and k; returns that of log_decay (M,C,K)."""
        _, dO, dz, R = pairs
        dq, de, dk = grads
        same = (dO * R).sum(-1, keepdim=True)
        dq.addcmul_(same, k)
        dk.addcmul_(same, q)
        dl = torch.zeros_like(k)
        for h, head2, tail1 in self.levels():
            right = times(halves(k, h)[0], tail1)
            left = halves(q, h)[1] * head2
            dA = torch.bmm(halves(dO, h)[1], halves(R, h)[0].mT)
            dleft, dright = _product(dA, right), _product(dA.mT, left)
            halves(dq, h)[1].addcmul_(dleft, head2)
            rows = dleft.mul_(left)
            if e is not None and de is not None and dz is not None:
                left = halves(e, h)[1] * head2
                dT = torch.bmm(halves(dz, h)[1], halves(R, h)[0].mT)
                dleft = _product(dT, right)
                dright.sub_(_product(dT.mT, left))
                halves(de, h)[1].addcmul_(dleft, head2, value=-1)
                rows.addcmul_(dleft, left, value=-1)
            first = halves(dk, h)[0]
            if tail1 is None:
                first.add_(dright)
            else:
                first.addcmul_(dright, tail1)
            dl1, dl2 = halves(dl, h)
            dl2.add_(later_rows(rows))
            if h > 1:
                dl1.add_(earlier_rows(dright.mul_(right)))
        return dl
