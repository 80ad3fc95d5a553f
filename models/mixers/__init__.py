"""Token mixers. `MIXERS` maps a family to its class; adding one is its file and one line here."""

from mnemolab.registry import Entry, Registry

MIXERS = Registry(
    "mixer",
    {
        "memory": Entry("mnemolab.models.mixers.memory:MemoryMixer", "the memory recurrence"),
        "softmax": Entry("mnemolab.models.mixers.softmax:SoftmaxMixer", "softmax attention"),
    },
)
