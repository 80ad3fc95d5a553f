"""The Ray engine on a cluster of several nodes on one machine, one of them killed while it works."""

import pytest

from mnemolab.errors import BadRequest, RunFailed
from mnemolab.trainers import Sweep, load_run, run_sweep
from mnemolab.trainers.events import Failed, Finished, Progress, Started
from mnemolab.trainers.ray_engine import RayEngine

ray = pytest.importorskip("ray")  # an extra: neither the tests nor the type check may ask for it
Cluster = pytest.importorskip("ray.cluster_utils").Cluster

pytestmark = [
    pytest.mark.slow,  # nodes and actors take a while to come up
    pytest.mark.filterwarnings("ignore"),  # Ray's own
]


@pytest.fixture
def cluster(monkeypatch):
    # the head has no CPU for actors: they live on the two nodes
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    monkeypatch.setenv("RAY_ADDRESS", made.address)
    yield made
    made.shutdown()


def test_a_lost_node_loses_no_run(cluster, values, tmp_path, plugin):
    """Four runs of some seconds on two nodes of one CPU; a node dies once both work. One more run raises."""
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    cluster.wait_for_nodes()
    long = values(**{"budget.steps": 600, "budget.evaluate_every": 200})
    bad = {"task": {"name": "faulty", "fault": "raise", "cure": str(tmp_path / "cure")}}
    sweep = Sweep.from_dict({"name": "s", "base": long, "list": [*({"seed": seed} for seed in range(4)), bad]})
    events, working = [], set()

    def hear(event):
        events.append(event)
        if isinstance(event, Progress):
            working.add(event.run_id)
        if len(working) == 2 and nodes:
            cluster.remove_node(nodes.pop(), allow_graceful=False)
            nodes.clear()

    outcome = run_sweep(sweep, tmp_path, engine="ray", workers=2, on_event=hear, plugins=[plugin])
    (broken,) = [run.run_id for run in sweep.runs if run.task["name"] == "faulty"]
    assert outcome.failed == (broken,)
    assert len(outcome.done) == 4
    assert all(load_run(tmp_path / name).result["test"] for name in outcome.done)
    started = [event.run_id for event in events if isinstance(event, Started)]
    assert len(started) == 6  # the lost run was started twice
    assert len([event for event in events if isinstance(event, Finished)]) == 4
    assert "this task is faulty" in next(event.error for event in events if isinstance(event, Failed))

    (tmp_path / "cure").touch()
    again = run_sweep(sweep, tmp_path, engine="ray", workers=1, plugins=[plugin])
    assert (again.done, again.failed, len(again.skipped)) == ((broken,), (), 4)


def test_workers_that_cannot_start(cluster, values, tmp_path):
    cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    sweep = Sweep.from_dict({"name": "s", "base": values()})
    with pytest.raises(RunFailed, match="no_such_plugin"):
        run_sweep(sweep, tmp_path, engine="ray", workers=1, plugins=["no_such_plugin"])


def test_a_cluster_that_is_not_there(monkeypatch):
    def refuse(**options):
        raise ConnectionError("nobody there")  # what Ray says, after a minute of trying

    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(BadRequest, match=r"RAY_ADDRESS=127\.0\.0\.1:1: no Ray cluster answers"), RayEngine():
        pass
