"""Checkpoints: plain values only, and one that is of no use is put aside."""

import pytest
import torch

from mnemolab.errors import BadRequest
from mnemolab.trainers import train
from mnemolab.trainers.stops import Stopped


def test_a_checkpoint_of_another_run_is_put_aside(tiny, tmp_path, capsys):
    seen = []
    with pytest.raises(Stopped):
        train(tiny(seed=1), tmp_path / "a", tell=lambda state: seen.append(1), stop=lambda: bool(seen))
    folder = tmp_path / "b" / tiny().run_id
    folder.mkdir(parents=True)
    (tmp_path / "a" / tiny(seed=1).run_id / "resume.ckpt").rename(folder / "resume.ckpt")
    run = train(tiny(), tmp_path / "b")
    assert "not a checkpoint of this run" in capsys.readouterr().err
    assert (run.result["resumed"], run.result["test"]) == (0, train(tiny(), tmp_path / "c").result["test"])


def test_a_checkpoint_cannot_run_code(tiny, tmp_path):
    run = train(tiny(), tmp_path)

    class Evil:
        def __reduce__(self):
            return (pytest.fail, ("code of a checkpoint was run",))

    torch.save({"state_dict": Evil()}, run.folder / "model.pt")
    with pytest.raises(BadRequest, match="not a mnemolab checkpoint"):
        run.model()


@pytest.mark.parametrize(
    "damage",
    [
        lambda saved: saved["state_dict"].popitem(),
        lambda saved: saved["state_dict"].update({next(iter(saved["state_dict"])): torch.zeros(3)}),
        lambda saved: saved.update(state_dict=None),
        lambda saved: saved.update(optimiser={}),
        lambda saved: saved["optimiser"].update(state={}),
        lambda saved: saved["optimiser"]["param_groups"].pop(),
        lambda saved: saved["state"].update(step="7"),
        lambda saved: saved["state"].update(step=-3),
        lambda saved: saved["state"].update(step=10**6),
        lambda saved: saved["state"].update(losses=None),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_put_aside_and_the_run_starts_again(tiny, tmp_path, capsys, damage):
    """A version that names a parameter otherwise would meet the same file at every try."""
    config = tiny()
    unbroken = train(config, tmp_path / "a")

    def stop():
        return (tmp_path / "b" / config.run_id / "metrics.jsonl").exists()

    with pytest.raises(Stopped):
        train(config, tmp_path / "b", stop=stop)
    path = tmp_path / "b" / config.run_id / "resume.ckpt"
    saved = torch.load(path, weights_only=True)
    damage(saved)
    torch.save(saved, path)
    again = train(config, tmp_path / "b")
    assert "starting this run from step 0" in capsys.readouterr().err
    assert again.result["resumed"] == 0 and again.result["test"] == unbroken.result["test"]
    assert path.with_suffix(".unreadable").exists()
