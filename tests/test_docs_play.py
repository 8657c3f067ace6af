"""The pages of docs/play/ in headless Chromium: agents act there as in Python, and games keep to the rules."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import queue
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import rollmill

_ROOT = Path(__file__).resolve().parents[1]
_PLAY = _ROOT / "docs/play"
_ROWS, _COLUMNS = 6, 7
_CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]
# What another host would deliver cannot be had.
_OFFLINE = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
_HARNESS = """<!doctype html><meta charset="utf-8"><title>test</title><script type="module">
const wait = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
async function until(holds) { while (!holds()) await wait(20); }
/** The document of a page of docs/play/, once it is loaded. */
async function open(page) {
  const frame = document.createElement("iframe");
  frame.width = 900;
  frame.height = 800;
  frame.src = page;
  document.body.append(frame);
  await new Promise((resolve) => { frame.onload = resolve; });
  return frame.contentDocument;
}
let report;
try {
  report = { result: await (async () => { SCRIPT })() };
} catch (error) {
  report = { error: `${error}\\n${error.stack}` };
}
await fetch("report", { method: "POST", body: JSON.stringify(report) });
</script>"""
needs_browser = pytest.mark.skipif(_CHROMIUM is None, reason="needs Chromium (apt install chromium)")

Board = np.ndarray[Any, np.dtype[np.int8]]
RunInPage = Callable[..., Any]


def _hook() -> ModuleType:
    """The site's hook for onnxruntime-web, which no package contains."""
    spec = importlib.util.spec_from_file_location("onnxruntime_web", _ROOT / "docs/_hooks/onnxruntime_web.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def runtime() -> Path:
    """The folder of onnxruntime-web."""
    hook = _hook()
    try:
        hook.fetch()
    except hook.FetchError as error:
        pytest.skip(f"needs onnxruntime-web: {error}")
    folder: Path = hook.FOLDER
    return folder


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """The pages as on the site, but for the theme and onnxruntime-web."""
    folder = tmp_path / "site"
    shutil.copytree(_PLAY, folder)
    for page in folder.glob("*.md"):
        [body] = re.findall(r"^<link.*?</script>$", page.read_text(), re.MULTILINE | re.DOTALL)
        page.with_suffix(".html").write_text(f'<!doctype html><meta charset="utf-8"><body>{body}')
    return folder


@pytest.fixture
def runtime_on_site(site: Path, runtime: Path) -> None:
    """The pages find onnxruntime-web."""
    (site / "onnxruntime-web").symlink_to(runtime)


@pytest.fixture
def committed_agent() -> Any:
    """A session of Python's onnxruntime with the connect four agent of the page."""
    return pytest.importorskip("onnxruntime").InferenceSession(_PLAY / "connect-four.onnx")


@pytest.fixture
def run_in_page(site: Path, tmp_path: Path) -> Iterator[RunInPage]:
    """Serves the pages, runs a script in a page beside them and returns what the script does."""
    reports: queue.Queue[dict[str, Any]] = queue.Queue()

    class Handler(SimpleHTTPRequestHandler):
        def do_POST(self) -> None:
            reports.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever).start()

        def run(script: str, **values: object) -> Any:
            constants = "".join(f"const {name} = {json.dumps(value)};\n" for name, value in values.items())
            (site / "test.html").write_text(_HARNESS.replace("SCRIPT", constants + script))
            assert _CHROMIUM is not None
            profile = tmp_path / "profile"
            command = [_CHROMIUM, *_FLAGS, _OFFLINE, f"--user-data-dir={profile}"]
            url = f"http://127.0.0.1:{server.server_port}/test.html"
            with (tmp_path / "chromium.log").open("w") as log:
                browser = subprocess.Popen([*command, url], stdout=log, stderr=log)
                try:
                    report = reports.get(timeout=150)
                except queue.Empty:
                    pytest.fail(f"the page reported nothing: {(tmp_path / 'chromium.log').read_text()}")
                finally:
                    browser.terminate()
                    browser.wait(20)
            assert "error" not in report, report["error"]
            return report["result"]

        yield run
        server.shutdown()


def _drop(board: Board, column: int, player: int) -> tuple[int, int]:
    """Put a stone into a column; return its row and column."""
    row = int(np.flatnonzero(board[:, column] < 0)[-1])
    board[row, column] = player
    return row, column


def _has_four(board: Board, player: int) -> bool:
    """Whether a player has four in a row: every window of every line is looked at."""
    for row, column in itertools.product(range(_ROWS), range(_COLUMNS)):
        for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
            squares = [(row + i * down, column + i * right) for i in range(4)]
            if all(0 <= r < _ROWS and 0 <= c < _COLUMNS and board[r, c] == player for r, c in squares):
                return True
    return False


def _board_after(moves: Sequence[int]) -> Board:
    """The players' stones, the top row first; -1 is empty."""
    board = np.full((_ROWS, _COLUMNS), -1, np.int8)
    for turn, column in enumerate(moves):
        _drop(board, column, turn % 2)
    return board


def _observed(moves: Sequence[int]) -> tuple[Any, Any]:
    """Observation and mask of the player to move."""
    board, player = _board_after(moves), len(moves) % 2
    return np.stack([board == player, board == 1 - player], -1).astype(np.int8), board[0] < 0


def _random_positions(count: int) -> list[list[int]]:
    """Moves that lead to positions in which the game goes on, of all lengths, without repetitions."""
    random = np.random.default_rng(4)
    found: dict[tuple[int, ...], None] = {}
    while len(found) < count:
        moves: list[int] = []
        for _ in range(random.integers(0, 36)):
            board = _board_after(moves)
            moves.append(int(random.choice(np.flatnonzero(board[0] < 0))))
            if _has_four(_board_after(moves), (len(moves) - 1) % 2):
                break
        else:
            found[tuple(moves)] = None
    return [list(moves) for moves in found]


_PLAY_POSITIONS = """
const { Agent } = await import("./agent.js");
const { Game, observe } = await import("./connect-four-game.js");
const agent = await Agent.load(new URL("connect-four.onnx", location));
const found = [];
for (const moves of positions) {
  const game = new Game();
  for (const column of moves) game.play(column);
  found.push({ board: [...game.board], isOver: game.isOver, ...(await agent.act(observe(game))) });
}
return found;
"""


@needs_browser
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("runtime_on_site")
def test_the_page_plays_the_moves_of_the_committed_agent(committed_agent: Any, run_in_page: RunInPage) -> None:
    positions = _random_positions(50)
    assert sum(not _observed(moves)[1].all() for moves in positions) >= 10, "masks matter in few positions"
    found = run_in_page(_PLAY_POSITIONS, positions=positions)
    for moves, acted in zip(positions, found, strict=True):
        observation, mask = _observed(moves)
        assert acted["board"] == _board_after(moves).ravel().tolist()
        assert not acted["isOver"]
        outputs = committed_agent.run(["action", "value"], {"obs": observation[None], "action_mask": mask[None]})
        assert (acted["action"], mask[acted["action"]]) == (outputs[0].item(), True)
        assert acted["value"] == pytest.approx(outputs[1].item(), abs=1e-4)


@needs_browser
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.usefixtures("runtime_on_site")
def test_the_page_plays_the_moves_of_agent_act(site: Path, run_in_page: RunInPage, tmp_path: Path) -> None:
    for package in ("envpool", "onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    small = {"num_envs": 4, "rollout_length": 16, "learner.batch_size": 64, "learner.minibatches": 2}
    run = rollmill.train("envpool/ConnectFour-v1", run_dir=tmp_path / "run", quiet=True, total_steps=300, **small)
    exported = rollmill.export(run.dir).path
    shutil.copy(exported, site / "connect-four.onnx")
    positions = _random_positions(50)
    found = run_in_page(_PLAY_POSITIONS, positions=positions)
    agent = rollmill.load(run.dir)
    expected = [
        int(agent.act(observation, action_mask=mask, deterministic=True))
        for observation, mask in map(_observed, positions)
    ]
    assert [acted["action"] for acted in found] == expected
    assert len(set(expected)) > 1


_PLAY_GAMES = """
const page = await open("connect-four.html");
const get = (selector) => page.querySelector(selector);
const status = () => get(".play-status").textContent;
const columns = [...page.querySelectorAll(".play-column")];
const stone = (row, column) => columns[column].children[row].dataset.stone;
await until(() => status().includes("choose a column"));
const games = [];
for (const [number, first] of ["visitor", "agent", "visitor", "agent"].entries()) {
  get(`input[value=${first}]`).click();
  get(".play-new").click();
  const moves = [];
  const readAgentsMove = async () => {
    await until(() => !status().includes("agent's turn"));
    const move = status().match(/agent plays column (\\d)/);
    if (move) moves.push(Number(move[1]) - 1);
  };
  if (first === "agent") await readAgentsMove();
  while (!/win|draw/.test(status())) {
    const column = draws.pop() % 7;
    const count = page.querySelectorAll("[data-stone=visitor]").length;
    const isAllowed = stone(0, column) === "";
    if (number % 2) columns[column].click();
    else columns[0].dispatchEvent(new KeyboardEvent("keydown", { key: String(column + 1), bubbles: true }));
    columns[column].click(); // It is the agent's turn, or the column is full: nothing may happen.
    if (page.querySelectorAll(".play-board [data-stone=visitor]").length !== count - 1 + Number(isAllowed)) {
      throw new Error("a move that is not allowed was played, or one that is allowed was not");
    }
    if (!isAllowed) continue;
    moves.push(column);
    await readAgentsMove();
  }
  const board = Array.from({ length: 42 }, (_, square) => stone(Math.floor(square / 7), square % 7));
  const line = [...page.querySelectorAll(".play-line")].map((square) => square.dataset.stone);
  games.push({ first, moves, board, line, status: status() });
}
return games;
"""


@needs_browser
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("runtime_on_site")
def test_games_in_the_page_keep_to_the_rules(committed_agent: Any, run_in_page: RunInPage) -> None:
    draws = np.random.default_rng(3).integers(0, 7, 400).tolist()
    for game in run_in_page(_PLAY_GAMES, draws=draws):
        agent, moves = int(game["first"] == "visitor"), game["moves"]
        for turn, move in enumerate(moves):
            if turn % 2 == agent:
                observation, mask = _observed(moves[:turn])
                inputs = {"obs": observation[None], "action_mask": mask[None]}
                assert move == committed_agent.run(["action"], inputs)[0].item()
            assert not any(_has_four(_board_after(moves[:turn]), player) for player in (0, 1))
        board = _board_after(moves)
        names = {-1: "", agent: "agent", 1 - agent: "visitor"}
        assert game["board"] == [names[int(owner)] for owner in board.ravel()]
        winner = next((names[player] for player in (0, 1) if _has_four(board, player)), None)
        words = {"agent": "The agent wins.", "visitor": "You win.", None: "A draw."}
        assert game["status"].endswith(words[winner])
        assert (len(game["line"]) >= 4, set(game["line"])) == ((True, {winner}) if winner else (False, set()))


_FULL_BOARD = """
const { Game } = await import("./connect-four-game.js");
const game = new Game();
for (const column of moves) game.play(column);
const allowed = [0, 1, 2, 3, 4, 5, 6].map((column) => game.allows(column));
return { isOver: game.isOver, winner: game.winner, line: game.line, allowed };
"""


@needs_browser
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_full_board_is_a_draw(run_in_page: RunInPage) -> None:
    moves = [0, 1, 0, 1, 1, 0, 1, 0, 0, 1, 0, 1, 2, 3, 2, 3, 3, 2, 3, 2, 2, 3, 2, 3]
    moves += [4, 5, 4, 5, 5, 4, 5, 4, 4, 5, 4, 5, 6, 6, 6, 6, 6, 6]
    board = _board_after(moves)
    assert (board >= 0).all()
    assert not _has_four(board, 0)
    assert not _has_four(board, 1)
    found = run_in_page(_FULL_BOARD, moves=moves)
    assert found == {"isOver": True, "winner": None, "line": [], "allowed": [False] * 7}


_BALANCE = """
const physics = await import("./cartpole-physics.js");
const { Agent } = await import("./agent.js");
const agent = await Agent.load(new URL("cartpole.onnx", location));
let state = first;
const states = [state];
for (const action of actions) states.push((state = physics.step(state, action)));
const chosen = [];
for (const observed of observations) chosen.push((await agent.act(physics.observe(observed))).action);
const lengths = [];
for (const [number, start] of starts.entries()) {
  const push = 10 * ((number % 3) - 1); // To the left, none, to the right.
  let length = 0;
  for (state = start; length < 500 && !physics.hasFailed(state); length += 1) {
    const { action } = await agent.act(physics.observe(state));
    state = physics.step(state, action, length >= 100 && length < 105 ? push : 0);
  }
  lengths.push(length);
}
return { states, failed: states.map(physics.hasFailed), chosen, lengths };
"""


@needs_browser
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("runtime_on_site")
def test_cartpole_moves_as_in_gymnasium_and_the_committed_agent_balances_it_when_pushed(run_in_page: RunInPage) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    import gymnasium

    random = np.random.default_rng(5)
    actions = random.integers(0, 2, 500).tolist()
    env: Any = gymnasium.make("CartPole-v1").unwrapped
    env.reset(seed=1)
    states, failed = [env.state.tolist()], [False]
    while not failed[-1]:
        _, _, terminated, _, _ = env.step(actions[len(states) - 1])
        states.append(env.state.tolist())
        failed.append(terminated)
    observations = random.uniform(-0.2, 0.2, (50, 4)).astype(np.float32)
    starts = random.uniform(-0.05, 0.05, (6, 4)).tolist()
    found = run_in_page(
        _BALANCE,
        first=states[0],
        actions=actions[: len(states) - 1],
        observations=observations.tolist(),
        starts=starts,
    )
    np.testing.assert_allclose(found["states"], states, rtol=1e-12)
    assert found["failed"] == failed
    session = onnxruntime.InferenceSession(_PLAY / "cartpole.onnx")
    assert found["chosen"] == session.run(["action"], {"obs": observations})[0].tolist()
    assert found["lengths"] == [500] * 6


_WATCH = """
const page = await open("cartpole.html");
const get = (selector) => page.querySelector(selector);
const step = () => Number(get(".play-detail").textContent.match(/Step (\\d+)/)?.[1]);
await until(() => step() >= 20);
get(".play-right").click();
const pushed = step();
await until(() => step() >= pushed + 20);
get(".play-pause").click();
await wait(200);
const paused = step();
await wait(300);
const still = step() === paused;
get("canvas").dispatchEvent(new KeyboardEvent("keydown", { key: "r", bubbles: true }));
return { still, reset: step(), status: get(".play-status").textContent };
"""


@needs_browser
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("runtime_on_site")
def test_the_cart_can_be_pushed_paused_and_reset(run_in_page: RunInPage) -> None:
    assert run_in_page(_WATCH) == {"still": True, "reset": 0, "status": "Paused."}


@needs_browser
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", ["connect-four", "cartpole"])
def test_a_page_without_onnxruntime_web_says_what_is_missing(page: str, run_in_page: RunInPage) -> None:
    script = """
    const shown = (await open(page)).querySelector(".play-status");
    await until(() => shown.textContent.includes("npm"));
    return shown.textContent;
    """
    text = run_in_page(script, page=f"{page}.html")
    assert text == "This site was built without onnxruntime-web. Install npm, then run “make docs” again."


def test_a_package_that_is_not_the_pinned_one_is_refused(tmp_path: Path) -> None:
    hook = _hook()
    (tmp_path / "package.tgz").write_bytes(b"another")
    with pytest.raises(hook.IntegrityError, match=r"package\.tgz has the hash sha512-.*, expected sha512-"):
        hook.check_integrity(tmp_path / "package.tgz", hook.INTEGRITY)


def test_without_npm_the_script_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hook = _hook()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(hook.FetchError, match=r"npm is not installed: install Node\.js"):
        hook.fetch(tmp_path / "runtime")


def test_a_failure_of_npm_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hook = _hook()
    npm = tmp_path / "npm"
    npm.write_text("#!/bin/sh\necho no network >&2\nexit 1\n")
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(hook.FetchError, match=r"npm cannot fetch onnxruntime-web \S+, check the network: no network"):
        hook.fetch(tmp_path / "runtime")
    assert not (tmp_path / "runtime").exists()
