"""Equal sizes: change one size of a stage until its parameters, or its state, equal those of a reference stage.

The reference has the same width, depth, heads, head_dim, vocabulary and recipe: gpt2 for parameters (those of
embedding, head and positions aside), kda for the state.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from mnemolab.errors import BadRequest
from mnemolab.kernels.operands import MAX_CHANNELS
from mnemolab.models.accounting import count_parameters, skeleton
from mnemolab.models.config import HeadsConfig, MemoryConfig, ModelConfig, RNNConfig
from mnemolab.models.mixers.heads import HeadsMixer

__all__ = ["TOLERANCE", "match_parameters", "match_state", "matched"]

TOLERANCE = 0.02


def matched(config: ModelConfig, reference: ModelConfig, match: str) -> ModelConfig:
    """`config` with one size changed so that it agrees with `reference` within 2%, in `params` or `state`.

    Raises BadRequest, saying why, when no size does that.
    """
    return match_parameters(config, reference) if match == "params" else match_state(config, reference)


def match_parameters(config: ModelConfig, reference: ModelConfig) -> ModelConfig:
    """Solves the MLP's hidden width, which leaves the memory as it is."""
    target = _weights(reference)
    solved = _solve(lambda size: replace(config, mlp_width=size), _weights, target, config.hidden)
    return _checked(solved, _weights(solved), target, "parameters", "mlp_width")


def match_state(config: ModelConfig, reference: ModelConfig) -> ModelConfig:
    """Solves the key and value channels of memories (keeping their ratio), or the hidden units of a recurrent network."""
    held = skeleton(config).layers
    if any("cache" in block.mixer.state_parts(1) for block in held):
        grows = sum(block.mixer.state_parts(1).get("cache", 0) for block in held)
        raise BadRequest(
            f"match='state': stage {config.name!r} caches {grows} elements a token, so its state equals a fixed one at one "
            "length only; choose match='params'"
        )
    target = _state(reference)
    if isinstance(config.mixers[0], RNNConfig):
        solved = _solve(lambda size: replace(config, head_dim=size), _state, target, config.head_dim)
        return _checked(solved, _state(solved), target, "state elements", "head_dim")
    first = skeleton(config).layers[0].mixer
    if not isinstance(first, HeadsMixer):
        raise BadRequest(f"match='state': the state of stage {config.name!r} has no size to solve for; choose 'params'")
    key_dim, value_dim = first.key_dim, first.value_dim
    pair = 2 if config.positions == "rotary" else 1  # which turns pairs of key channels
    most = MAX_CHANNELS if value_dim <= key_dim else int(MAX_CHANNELS * key_dim / value_dim)
    near = _solve(
        lambda size: _channels(config, pair * size, max(1, round(pair * size * value_dim / key_dim))),
        _state,
        target,
        key_dim // pair,
        most // pair,
    )
    if abs(_state(near) - target) <= TOLERANCE / 4 * target:
        return near
    # both sizes are small integers, so the best pair is looked for around the ratio kept
    found = [near]
    for keys in range(_keys(near) - 3 * pair, _keys(near) + 4 * pair, pair):
        if 1 <= keys <= MAX_CHANNELS:
            make = partial(_channels, config, keys)
            found.append(_solve(make, _state, target, value_dim, MAX_CHANNELS))
    solved = min(found, key=lambda c: (abs(_state(c) - target) / target > TOLERANCE / 4, abs(_keys(c) - _keys(near))))
    return _checked(solved, _state(solved), target, "state elements", "key_dim and value_dim")


def _state(config: ModelConfig) -> int:
    """Elements of the fixed state. Nothing but the mixers is built."""
    lean = replace(config, vocab_size=1, max_length=1, mlp="none", experts=None)
    return skeleton(lean).state_elements(0)


def _weights(config: ModelConfig) -> int:
    """Parameters without embedding, head and positions, which say nothing of the mixers and differ in being tied."""
    return count_parameters(config, embeddings=False)


def _channels(config: ModelConfig, key_dim: int, value_dim: int) -> ModelConfig:
    mixers = tuple(
        replace(mixer, key_dim=key_dim, value_dim=value_dim) if isinstance(mixer, MemoryConfig) else mixer
        for mixer in config.mixers
    )
    return replace(config, mixers=mixers)


def _keys(config: ModelConfig) -> int:
    mixer = config.mixers[0]
    return mixer.key_dim if isinstance(mixer, HeadsConfig) else 0


def _solve(
    make: Callable[[int], ModelConfig],
    measure: Callable[[ModelConfig], int],
    target: int,
    start: int,
    most: int = 1 << 20,
) -> ModelConfig:
    """The config whose measure, which grows with the size, is nearest to the target: bisection over sizes up to `most`."""
    low, high = 1, min(max(2, start), most)
    while measure(make(high)) < target and high < most:
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if measure(make(middle)) < target else (low, middle)
    return min((make(low), make(high)), key=lambda config: abs(measure(config) - target))


def _checked(config: ModelConfig, got: int, target: int, what: str, size: str) -> ModelConfig:
    if abs(got - target) <= TOLERANCE * target:
        return config
    raise BadRequest(
        f"stage {config.name!r} cannot have {target} {what}: the nearest that {size} gives is {got}; change width, heads or "
        "head_dim, or choose match='none'"
    )
