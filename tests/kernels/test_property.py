"""Random shapes, kinds, gates, keys and chunk sizes: the chunked form is the loop."""

from hypothesis import given, settings
from hypothesis import strategies as st

KIND = st.sampled_from(("none", "scalar", "channel"))


@settings(max_examples=80, deadline=None)
@given(
    kinds=st.tuples(KIND, KIND, KIND),
    sizes=st.fixed_dictionaries(
        {
            "B": st.integers(1, 3),
            "T": st.integers(1, 40),
            "H": st.integers(1, 3),
            "K": st.integers(1, 9),
            "V": st.integers(1, 9),
        }
    ),
    keys=st.sampled_from(("random", "near_collinear", "identical", "zero")),
    normalize=st.booleans(),
    state=st.booleans(),
    strength=st.sampled_from((0.0, 0.01, 1.0, 30.0, 1e4)),
    chunk_size=st.sampled_from((None, 1, 2, 4, 8, 16, 32, 64)),
    seed=st.integers(0, 2**16),
)
def test_chunked_is_the_loop(bench, kinds, sizes, keys, normalize, state, strength, chunk_size, seed):
    operands = bench.make(*kinds, normalize=normalize, state=state, keys=keys, strength=strength, seed=seed, **sizes)
    wanted = bench.run(operands, "loop")
    # what the loop itself gets only by cancellation, or by underflow, is rounding in both
    largest = max(float(x.norm()) for x in wanted.values())
    bench.assert_same(bench.run(operands, chunk_size=chunk_size), wanted, 1e-10, floor=1e-4 * largest)
