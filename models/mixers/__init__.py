"""Token mixers. `MIXERS` maps a family to its class; adding one is its file and one line here."""

from mnemolab.registry import Entry, Registry

MIXERS = Registry(
    "mixer",
    {
        "memory": Entry("mnemolab.models.mixers.memory:MemoryMixer", "the memory recurrence"),
        "latent": Entry("mnemolab.models.mixers.latent:LatentMixer", "multi-head latent attention"),
        "rnn": Entry("mnemolab.models.mixers.rnn:RNNMixer", "recurrent networks"),
        "wrapped": Entry("mnemolab.models.mixers.wrapped:WrappedMixer", "a module of one's own"),
        "softmax": Entry("mnemolab.models.mixers.softmax:SoftmaxMixer", "softmax attention"),
    },
)
