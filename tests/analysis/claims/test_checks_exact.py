"""Exact and counted checks: they pass on the library as it is, and each fails on a case that breaks its claim."""

from dataclasses import replace

import pytest
import torch

from mnemolab.analysis.claims.checks import CHECKS, chunk_cost, counted, exact
from mnemolab.kernels import chunked
from mnemolab.models import STAGES, published_config
from mnemolab.models.mixers.memory import MemoryMixer
from mnemolab.models.state import Cache


def passed(name, **options):
    """Check's name -> whether it passed."""
    return {check.name: check.passed for check in CHECKS[name]("quick", "cpu", **options)}


@pytest.mark.parametrize("name", ("chunk-exact", "attnres-zero-plain", "order-from-recurrence", "kv-bytes"))
def test_equalities_hold(name):
    before = torch.get_rng_state()
    found = passed(name)
    assert found and all(found.values()), found
    assert torch.equal(torch.get_rng_state(), before)


def test_caches_of_every_stage():
    found = passed("kv-cache-equal")
    assert all(found.values()), found
    assert set(STAGES) >= set(found) >= {"rnn", "gpt2", "mamba2", "kda", "kimi_linear", "kimi_k3"}


def test_every_rule_of_the_lineage_is_cut_into_chunks():
    mixers = {name: STAGES[name].recipe(None)[1].mixers for name in STAGES}
    rules = {name for name, kinds in mixers.items() if [kind.family for kind in kinds] == ["memory"]}
    assert {name.partition(",")[0] for name in exact.RULES} == rules


def test_the_replication_draws_other_weights():
    quick, again = (CHECKS["order-from-recurrence"](tier, "cpu")[1].value for tier in ("full", "replicate"))
    assert quick != again


def test_a_cache_that_loses_a_token_is_found(monkeypatch):
    append = Cache.append
    monkeypatch.setattr(Cache, "append", lambda self, new: append(self, new) if self.length != 11 else self)
    found = passed("kv-cache-equal")
    assert [name for name, ok in found.items() if not ok] == ["gpt2", "kimi_linear", "kimi_k3"]


def test_decay_a_little_off_in_the_chunks_is_found(monkeypatch):
    form = chunked.decay_of
    monkeypatch.setattr(chunked, "decay_of", lambda g, *rest: form(None if g is None else 1.0001 * g, *rest))
    found = passed("chunk-exact")
    assert {name: not ok for name, ok in found.items()} == {
        rule: exact.RULES[rule][0] != "none" for rule in exact.RULES
    }


def test_pseudo_queries_off_zero_are_found():
    found = passed("attnres-zero-plain", query=0.01)
    assert found and not any(found.values()), found


def test_positions_and_a_silent_recurrence_are_found(monkeypatch):
    alone, below = passed("order-from-recurrence", positions="learned").values()
    assert not alone and below
    # without what KDA says, the same stack sees a set again
    silent = lambda self, x, q, k, v, state, need_state: (torch.zeros_like(v), {})
    monkeypatch.setattr(MemoryMixer, "remember", silent)
    alone, below = passed("order-from-recurrence").values()
    assert alone and not below


def test_another_ratio_of_layers_is_found():
    found = passed("kv-bytes", ratio="2:1")
    assert len(found) == 4 and not any(found.values()), found


def test_latent_experts(monkeypatch):
    assert all(passed("latent-moe-flops").values())
    k3 = published_config("kimi_k3")
    assert k3.experts is not None
    # three matrices of 3072 x 3584 for each of 16 experts, two operations a weight
    assert counted.token_flops(k3)["routed"] == 2 * 16 * 3 * 3072 * 3584
    wide = replace(k3, experts=replace(k3.experts, latent_width=7168))
    monkeypatch.setattr(counted, "published_config", lambda name: wide)
    assert not any(passed("latent-moe-flops").values())


def test_gpt2s_in_k3(monkeypatch):
    (check,) = CHECKS["scale-22580"]("quick", "cpu")
    assert check.passed and round(check.value) == 22_336
    monkeypatch.setattr(counted, "ARTICLES_RATIO", 23_000)
    assert not any(passed("scale-22580").values())


# ---- chunks


def test_operations_of_a_chunk(monkeypatch):
    assert chunk_cost.products(16, 32) == 4 * 32 * 32 + 4 * 16 * 32
    form = chunk_cost.memory_scan
    monkeypatch.setattr(chunk_cost, "memory_scan", lambda *a, chunk_size, **k: form(*a, chunk_size=2 * chunk_size, **k))
    assert not any(check.passed for check in chunk_cost._form())


def test_where_the_fewest_operations_are():
    # nothing decays: a larger chunk only adds pairs. With decay a chunk decays its state once, which C = 1 does most often
    assert [chunk_cost.fewest(stage, 64) for stage in ("linear_attention", "deltanet")] == [1, 1]
    assert [chunk_cost.fewest(stage, 64) for stage in ("gated_deltanet", "kda")] == [4, 4]
    assert [chunk_cost._fewest(stage).passed for stage in chunk_cost.STAGES] == [True, True, False, False]


def test_a_fast_chunk_of_one_is_found(monkeypatch):
    shapes = {"cpu": {"quick": ((1, 64, 1, 8), 3)}}
    monkeypatch.setattr(chunk_cost, "SHAPES", shapes)
    checks = chunk_cost._times("quick", "cpu")
    assert len(checks) == 3 and all(check.interval and check.interval[0] > 0 for check in checks)
    real = chunk_cost.rounds

    def swapped(cases, repeats, device):
        times = real(cases, repeats, device)
        return times | {"1": 0.5 * times["16"]}

    monkeypatch.setattr(chunk_cost, "rounds", swapped)
    assert not any(check.passed for check in chunk_cost._times("quick", "cpu"))
