"""Examples have the same bits on CPU and CUDA, and can be made inside a CUDA graph."""

import pytest
import torch

from mnemolab.tasks import make_task
from mnemolab.tasks.base import SPLITS
from mnemolab.tasks.outcomes import classify
from tests.gpu.graphs import captured

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

CASES = [
    ("associative_recall", {}),
    ("associative_recall", {"layout": "mqar", "unknown": 2, "gap_power": 0.5}),
    ("associative_recall", {"layout": "interleaved", "lag_law": "log", "unknown": 3}),
    ("associative_recall", {"fan": 2, "family": 2, "unknown": 2, "length": 80}),
    ("associative_recall", {"pool": 4}),
    ("associative_recall", {"repeats": 4, "pairs": 13, "length": 64}),
    ("associative_recall", {"pairs": 64, "length": 256, "key_vocabulary": 4096, "value_vocabulary": 4096}),
    ("key_overwrite", {}),
    ("key_overwrite", {"ask": "mixed", "length": 70, "gap": "mixed"}),
    ("topic_switch", {"blocks": 3, "length": 96, "ask": "all", "marker": "topic"}),
    ("random_copy", {"mode": "selective", "least": 4}),
    ("random_copy", {"mode": "prefix", "replacement": True, "alphabet": 26, "key_tokens": 2, "queries": 1}),
    ("random_copy", {"replacement": True, "alphabet": 8, "forced": True}),
    ("needle", {}),
    ("needle", {"keys": 2, "values": 3, "haystack": "markov"}),
    ("needle", {"keys": 4, "queries": 3, "value_tokens": 3, "haystack": "random"}),
    ("selective_retention", {"gap": "near"}),
    ("record_update", {}),
    ("stack", {}),
    ("directed_forgetting", {"forgotten": "unasked"}),
]
IDS = ["-".join([name, *(f"{k}={v}" for k, v in fields.items())]) for name, fields in CASES]


@pytest.mark.parametrize("name, fields", CASES, ids=IDS)
def test_cpu_and_cuda_make_the_same_bits(name, fields):
    task = make_task(name, **fields)
    indices = torch.cat([torch.arange(3000), torch.tensor([2**40 + 1])])
    for split in SPLITS:
        cpu = task.sample(indices, split=split, seed=7)
        cuda = task.sample(indices, split=split, seed=7, device="cuda")
        assert cuda.inputs.is_cuda
        back = cuda.to("cpu")
        assert torch.equal(cpu.inputs, back.inputs) and torch.equal(cpu.targets, back.targets)
        assert cpu.queries.keys() == back.queries.keys()
        for column, values in cpu.queries.items():
            assert torch.equal(values, back.queries[column]), column
        assert torch.equal(task.chance(cpu), task.chance(cuda).cpu())
        guess = cpu.inputs.gather(1, cpu.queries["position"].clamp(min=0) // 2)
        codes = classify(cpu, guess, task.vocabulary)
        assert torch.equal(codes, classify(cuda, guess.cuda(), task.vocabulary).cpu())


# a small space is split by content: how many draws it takes is not known beforehand
CAPTURED = [
    pytest.param(name, fields, id=case)
    for (name, fields), case in zip(CASES, IDS, strict=True)
    if not make_task(name, **fields).split_by_content
]


@pytest.mark.parametrize("name, fields", CAPTURED)
def test_examples_can_be_made_inside_a_cuda_graph(name, fields):
    task = make_task(name, **fields)
    indices = torch.arange(256, device="cuda")
    graph, held = captured(lambda: task.sample(indices, device="cuda"))
    indices += 1000
    graph.replay()
    expected = task.sample(torch.arange(1000, 1256))
    assert torch.equal(held.inputs.cpu(), expected.inputs)
    assert torch.equal(held.queries["target"].cpu(), expected.queries["target"])
