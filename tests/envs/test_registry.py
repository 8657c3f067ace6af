from __future__ import annotations

import functools
import pickle
import subprocess
import sys
import textwrap

import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleEnv, CartPoleVectorEnv

from rollmill.envs.config import EnvConfig
from rollmill.envs.errors import UnknownEnvironment
from rollmill.envs.factory import make_env, make_group, probe
from rollmill.envs.python_group import PythonGroup
from rollmill.envs.registry import find_registration, install, register_env, register_factory, registrations
from rollmill.envs.user_code import NoSuchModuleError, import_user_code, lasting_name
from rollmill.envs.vector_group import VectorGroup


def test_a_class_is_registered_in_one_line():
    register_env("my-pole", CartPoleEnv, frameskip=2)
    config = EnvConfig(name="my-pole", kwargs={"sutton_barto_reward": True}, max_episode_steps=9)
    spec = probe(config)
    assert (spec.frameskip, spec.max_episode_steps, spec.native_vector) == (2, 9, False)
    assert spec.observation["obs"].shape == (4,)
    group = make_group(config, 3, [1, 2, 3])
    assert isinstance(group, PythonGroup)
    group.close()
    env = make_env(config)
    env.reset(seed=0)
    assert [env.step(k % 2)[3] for k in range(9)] == [False] * 8 + [True]


def test_a_vector_factory_gets_num_envs():
    register_env("poles", CartPoleVectorEnv, vector=True)
    assert probe(EnvConfig(name="poles")).native_vector
    group = make_group(EnvConfig(name="poles"), 5, [0] * 5)
    assert isinstance(group, VectorGroup)
    assert group.num_rows == 5
    group.close()
    with pytest.raises(UnknownEnvironment, match="only a native vector"):
        make_group(EnvConfig(name="poles", vector=False), 5, [0] * 5)
    with pytest.raises(UnknownEnvironment, match="use one in Python"):
        make_env(EnvConfig(name="poles"))


def test_registrations_come_before_built_in_names():
    register_env("atari/pong", CartPoleEnv)
    assert probe(EnvConfig(name="atari/pong")).observation["obs"].shape == (4,)


def test_registering_twice():
    register_env("x", CartPoleEnv)
    register_env("x", CartPoleEnv)
    with pytest.raises(ValueError, match="the name is taken by"):
        register_env("x", CartPoleVectorEnv)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("", CartPoleEnv), ValueError, "empty name"),
        (("x", 3), TypeError, "a class or function"),
    ],
)
def test_bad_registrations(arguments, error, message):
    with pytest.raises(error, match=message):
        register_env(*arguments)
    with pytest.raises(ValueError, match="at least 1"):
        register_env("x", CartPoleEnv, frameskip=0)


def test_registrations_are_installed_in_children():
    register_env("x", CartPoleEnv, frameskip=3)
    carried = pickle.dumps(registrations())
    register_env("y", CartPoleEnv)
    install(pickle.loads(carried))
    assert find_registration("x").frameskip == 3
    assert find_registration("z") is None


def test_a_module_given_for_import_registers(tmp_path, monkeypatch):
    (tmp_path / "their_envs.py").write_text(
        "import rollmill\nfrom gymnasium.envs.classic_control.cartpole import CartPoleEnv\n"
        "rollmill.register_env('theirs', CartPoleEnv)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UnknownEnvironment, match="theirs"):
        probe(EnvConfig(name="theirs"))
    assert probe(EnvConfig(name="theirs", imports=("their_envs",))).name == "theirs"
    with pytest.raises(NoSuchModuleError, match=r"--import their_env .*no such module"):
        probe(EnvConfig(name="theirs", imports=("their_env",)))
    (tmp_path / "broken_envs.py").write_text("import not_installed_anywhere\n")
    with pytest.raises(ModuleNotFoundError, match="not_installed_anywhere"):
        probe(EnvConfig(name="theirs", imports=("broken_envs",)))


def test_a_file_given_for_import_registers(tmp_path):
    path = tmp_path / "envs_in_a_file.py"
    path.write_text(
        "from gymnasium.envs.classic_control.cartpole import CartPoleEnv\n"
        "from rollmill import register_env\n"
        "class InAFile(CartPoleEnv): pass\nregister_env('in-a-file', InAFile)\n"
    )
    for _ in range(2):
        assert probe(EnvConfig(name="in-a-file", imports=(str(path),))).name == "in-a-file"
    with pytest.raises(NoSuchModuleError, match="there is no such file"):
        probe(EnvConfig(name="in-a-file", imports=(str(tmp_path / "other.py"),)))
    (tmp_path / "gym_like.py").write_text("import gym_like_and_not_there\n")
    with pytest.raises(ModuleNotFoundError, match="gym_like_and_not_there"):
        import_user_code(str(tmp_path / "gym_like.py"))


def test_a_class_of_the_users_script_reaches_spawned_children(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import multiprocessing
            from gymnasium.envs.classic_control.cartpole import CartPoleEnv
            from rollmill.envs.config import EnvConfig
            from rollmill.envs.factory import probe
            from rollmill.envs.registry import register_env

            class Mine(CartPoleEnv):
                pass

            register_env("mine", Mine)

            def child(queue):
                queue.put(probe(EnvConfig(name="mine")).observation["obs"].shape)

            if __name__ == "__main__":
                context = multiprocessing.get_context("spawn")
                queue = context.Queue()
                process = context.Process(target=child, args=(queue,))
                process.start()
                print(queue.get(timeout=60))
                process.join()
            """
        )
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=90, check=False)
    assert done.stdout.strip() == "(4,)", done.stderr


def test_a_time_limit_for_a_vector_of_the_users_own_is_refused():
    def vector(num_envs, **kwargs):
        raise AssertionError("it must not be built")

    register_env("own-vector-with-limit", vector, vector=True)
    with pytest.raises(UnknownEnvironment, match=r"env\.max_episode_steps=5 cannot be enforced"):
        probe(EnvConfig(name="own-vector-with-limit", max_episode_steps=5))


class OnTheTopLevel:
    """Found by its import path."""


def test_a_class_is_registered_under_its_import_path():
    name = register_factory(OnTheTopLevel)
    assert name == f"{__name__}:OnTheTopLevel"
    assert find_registration(name).factory is OnTheTopLevel


@pytest.mark.parametrize("given", [lambda: None, object(), 3, functools.partial(OnTheTopLevel)])
def test_factories_that_workers_cannot_import_raise(given):
    with pytest.raises(TypeError, match=r"give the name of a preset|top level of a module"):
        register_factory(given)


def test_an_import_path_is_a_name(tmp_path, monkeypatch):
    (tmp_path / "placed_envs.py").write_text(
        "from gymnasium.envs.classic_control.cartpole import CartPoleEnv\n"
        "class Outer:\n    class Placed(CartPoleEnv): pass\n"
    )
    (tmp_path / "placed_wrongly.py").write_text("import placed_and_not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert probe(EnvConfig(name="placed_envs:Outer.Placed")).name == "placed_envs:Outer.Placed"
    for nowhere in (
        "placed_envs:Other",
        "placed_envs:__name__",
        "placed_nowhere:Placed",
        ":Placed",
        "placed_envs:",
        "a/b:C",
    ):
        assert find_registration(nowhere) is None
    with pytest.raises(ModuleNotFoundError, match="placed_and_not_there"):
        find_registration("placed_wrongly:Placed")


def test_a_moved_file_is_found_after_an_import_from_its_new_path(tmp_path, monkeypatch):
    text = (
        "from gymnasium.envs.classic_control.cartpole import CartPoleEnv\n"
        "from rollmill import register_env\n"
        "class Moved(CartPoleEnv): pass\nregister_env('moved', Moved)\n"
    )
    (tmp_path / "moved_envs.py").write_text(text)
    recorded = str(tmp_path / "where_it_was" / "moved_envs.py")
    with pytest.raises(NoSuchModuleError, match="give its new path with --import"):
        probe(EnvConfig(name="moved", imports=(recorded,)))
    monkeypatch.chdir(tmp_path)
    import_user_code("moved_envs.py")
    assert probe(EnvConfig(name="moved", imports=(recorded,))).name == "moved"
    assert lasting_name("moved_envs.py") == str(tmp_path / "moved_envs.py")
    assert lasting_name("my_pkg.envs") == "my_pkg.envs"


def test_neighbours_of_a_script_come_before_the_working_directory(tmp_path, monkeypatch):
    for name in ("one", "other"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "neighbour.py").write_text(f"NAME = {name!r}\n")
        (folder / "script_of_one.py").write_text("from neighbour import NAME\n")
    monkeypatch.chdir(tmp_path / "other")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "other")])
    for module in ("neighbour", "script_of_one"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    assert import_user_code(str(tmp_path / "one" / "script_of_one.py")).NAME == "one"


def test_a_script_may_have_a_name_that_is_no_identifier(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    script = tmp_path / "01-maze.py"
    script.write_text("from gymnasium.envs.classic_control.cartpole import CartPoleEnv as Maze\n")
    import_user_code(str(script))
    found = find_registration("01-maze:Maze")
    assert found is not None
    assert found.factory is CartPoleEnv
