"""Logins, settings of trackers and folders do not appear in published settings and commands."""

from __future__ import annotations

import pytest

from rollmill.evaluation.published import published_command, published_settings


def test_settings_of_trackers_and_logins_are_left_out() -> None:
    settings = {
        "seed": 1,
        "env": {"kwargs": {"server": "http://me:secret@host:80/x", "names": ["https://token@host", 3]}},
        "tracking": {"mlflow_uri": "http://user:secret@host"},
    }
    assert published_settings(settings) == {
        "seed": 1,
        "env": {"kwargs": {"server": "http://host:80/x", "names": ["https://host", 3]}},
    }
    guests = {"population": {"guests": ["/home/me/runs/old", "prey=/home/me/runs/new", "random"], "policies": 2}}
    assert published_settings(guests) == {"population": {"guests": ["old", "prey=new", "random"], "policies": 2}}
    assert published_settings({"population.guests": "a=/b/c,/d/e"}) == {"population.guests": "a=c,e"}
    assert published_settings({"eval_against": ["/b/c", "random"]}) == {"eval_against": ["c", "random"]}
    assert published_settings({"eval_against": "/b/c,random"}) == {"eval_against": "c,random"}
    dotted = {"tracking.mlflow_uri": "http://host", "tracker": "mlflow", "env.kwargs.server": "a://b:p@ss@c"}
    assert published_settings(dotted) == {"env.kwargs.server": "a://c"}


@pytest.mark.parametrize(
    ("command", "published"),
    [
        ("rollmill train gym/CartPole-v1 --seed 3", "rollmill train gym/CartPole-v1 --seed 3"),
        ("rollmill train /home/me/own.py:Env --run-dir ~/runs/a", "rollmill train own.py:Env --run-dir a"),
        ("rollmill train x --tracking.mlflow-uri http://a:b@c --seed 3", "rollmill train x --seed 3"),
        ("rollmill train x --tracking.mlflow-uri=http://a:b@c --seed=3", "rollmill train x --seed=3"),
        ("rollmill train x --env.kwargs.data=/data/set/one", "rollmill train x --env.kwargs.data=one"),
        ("rollmill train x --env.kwargs.url http://a:b@c/d/e", "rollmill train x --env.kwargs.url http://c/d/e"),
        (
            "rollmill train --mlflow-uri http://host --wandb-entity=me x --tracker wandb --seed 3",
            "rollmill train x --seed 3",
        ),
        ("rollmill train --tracking__project secret x --tags --seed 3", "rollmill train x --seed 3"),
        ("rollmill train x --env.kwargs.url http://a:b/c@d/e", "rollmill train x --env.kwargs.url http://d/e"),
        ("rollmill train file:///home/me/x.py --run-dir '/home/me/my project/a'", "rollmill train x.py --run-dir a"),
        ("rollmill train ../secret/x.py --import ./own.py", "rollmill train x.py --import own.py"),
        ("rollmill train x --init-from runs/a/b", "rollmill train x --init-from runs/a/b"),
        ("/home/me/.venv/bin/python3 /home/me/.venv/bin/rollmill train x", "rollmill train x"),
        ("python3 -P -m rollmill train x", "rollmill train x"),
        ("python3 train.py --seed 3", "python3 train.py --seed 3"),
        ("rollmill train 'my env", ""),
        ("", ""),
    ],
)
def test_a_command_has_no_logins_and_no_folders_of_the_machine(command: str, published: str) -> None:
    assert published_command(command) == published
