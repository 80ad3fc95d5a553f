"""Every stage on a GPU: the same outputs as on the CPU, whole training steps captured, decoding equal to the forward."""

import pytest
import torch
import torch.nn.functional as F

from tests.models.stages import CASES, case_id, small, tokens

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

B, T = 4, 70
# of the largest value: fp32 sums in another order, 16-bit products of the Triton scan included
TOLERANCE = 5e-3

every_case = pytest.mark.parametrize(("name", "options"), CASES, ids=case_id)


def close(found, wanted):
    scale = max(1.0, wanted.abs().max().item())
    torch.testing.assert_close(found.cpu(), wanted.cpu(), atol=TOLERANCE * scale, rtol=0)


@every_case
def test_outputs_and_decoding_are_those_of_the_cpu(name, options):
    model, inputs = small(name, **options), tokens(B, T)
    with torch.no_grad():
        wanted = model(inputs)
        model, inputs = model.cuda(), inputs.cuda()
        close(model(inputs), wanted)
        logits, state = model.prefill(inputs[:, :60])
        close(logits, wanted[:, :60])
        for t in range(60, 64):
            logits, state = model.step(inputs[:, t], state)
            close(logits, wanted[:, t])


@every_case
def test_a_whole_training_step_is_captured(name, options, request):
    model = small(name, **options).cuda().train()
    optimiser = torch.optim.AdamW(model.parameter_groups(0.1), lr=torch.tensor(1e-3, device="cuda"), capturable=True)
    batches = [tokens(B, T, seed=seed).cuda() for seed in range(6)]
    inputs = batches[0].clone()

    def step():
        hidden, _ = model.features(inputs)
        loss = F.cross_entropy(F.linear(hidden[:, :-1].flatten(0, 1), model.head_weight), inputs[:, 1:].flatten())
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        return loss.detach()

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    torch.cuda.set_stream(stream)
    request.addfinalizer(lambda: torch.cuda.set_stream(torch.cuda.default_stream()))
    for _ in range(3):
        step()
    kept = {key: value.clone() for key, value in model.state_dict().items()}
    moments = [value for held in optimiser.state.values() for value in held.values()]
    kept_moments = [value.clone() for value in moments]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        captured = step()
    replayed = []
    for batch in batches:
        inputs.copy_(batch)
        graph.replay()
        replayed.append(captured.item())
    with torch.no_grad():
        for key, value in model.state_dict().items():
            value.copy_(kept[key])
    for value, before in zip(moments, kept_moments, strict=True):
        value.copy_(before)
    eager = []
    for batch in batches:
        inputs.copy_(batch)
        eager.append(step().item())
    assert len(set(eager)) == len(eager)
    torch.testing.assert_close(torch.tensor(replayed), torch.tensor(eager), atol=2e-2, rtol=0)
