"""A plugin: key_overwrite whose training stream can raise, kill its process or spoil its GPU, until the file `cure` exists."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from mnemolab.fields import setting
from mnemolab.tasks import register_task
from mnemolab.tasks.base import Batch, Split
from mnemolab.tasks.key_overwrite import KeyOverwrite

SPOILED: list[bool] = []


def _refuse() -> None:
    """What every call says after a kernel of this process went wrong."""
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


@register_task("faulty")
@dataclass(frozen=True)
class Faulty(KeyOverwrite):
    """key_overwrite that goes wrong on purpose."""

    name: ClassVar[str] = "faulty"
    fault: str = setting("none", "what happens at the first training batch", choices=("none", "raise", "die", "spoil"))
    cure: str = setting("", "a file whose presence makes the task well")

    def sample(self, indices: Tensor, split: Split = "train", seed: int = 0, device="cpu") -> Batch:
        if SPOILED:
            _refuse()
        if split == "train" and self.fault != "none" and not Path(self.cure).exists():
            if self.fault == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.fault == "spoil":
                SPOILED.append(True)
                torch.cuda.is_initialized, torch.cuda.synchronize = lambda: True, _refuse
                _refuse()
            raise ValueError("this task is faulty")
        return super().sample(indices, split, seed, device)
