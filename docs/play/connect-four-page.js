// The page on which a visitor plays connect four against the agent.

import { Agent } from "./agent.js";
import { COLUMNS, EMPTY, Game, ROWS, observe } from "./connect-four-game.js";

const PAUSE_MS = 400; // Between the visitor's move and the agent's, so that both are seen.
const root = document.getElementById("connect-four");
let agent;
let game;
let visitor; // The player that the visitor is: 0 or 1.

root.innerHTML = `
  <div class="play-board" role="group" aria-label="Board">
    ${Array.from({ length: COLUMNS }, (_, column) => `<button type="button" class="play-column" data-column="${column}">
      ${'<span class="play-square"></span>'.repeat(ROWS)}</button>`).join("")}
  </div>
  <div class="play-panel">
    <p class="play-status" role="status">The agent is being loaded.</p>
    <p class="play-detail"></p>
    <fieldset>
      <legend>Who begins the next game?</legend>
      <label><input type="radio" name="first" value="visitor" checked> you</label>
      <label><input type="radio" name="first" value="agent"> the agent</label>
    </fieldset>
    <button type="button" class="md-button md-button--primary play-new" disabled>New game</button>
    <p class="play-legend"><span class="play-square" data-stone="visitor"></span> you
      <span class="play-square" data-stone="agent"></span> the agent</p>
    <p class="play-keys">Keys, while the board has the focus: <kbd>1</kbd> to <kbd>7</kbd> play a column,
      <kbd>←</kbd> and <kbd>→</kbd> move between columns, <kbd>N</kbd> begins a new game.</p>
  </div>`;
const board = root.querySelector(".play-board");
const columns = [...root.querySelectorAll(".play-column")];
const squares = columns.map((column) => [...column.querySelectorAll(".play-square")]);
const status = root.querySelector(".play-status");
const detail = root.querySelector(".play-detail");
const newGame = root.querySelector(".play-new");

const nameOf = (player) => (player === visitor ? "visitor" : "agent");
const isVisitorsTurn = () => game && !game.isOver && game.player === visitor;

function show(lastSquare = null) {
  game.board.forEach((owner, square) => {
    const shown = squares[square % COLUMNS][Math.floor(square / COLUMNS)];
    shown.dataset.stone = owner === EMPTY ? "" : nameOf(owner);
    shown.classList.toggle("play-last", square === lastSquare);
    shown.classList.toggle("play-line", game.line.includes(square));
  });
  columns.forEach((button, column) => {
    button.setAttribute("aria-disabled", String(!(isVisitorsTurn() && game.allows(column))));
    const stones = Array.from(game.board).filter((owner, square) => square % COLUMNS === column && owner !== EMPTY);
    const words = stones.reverse().map((owner) => (owner === visitor ? "you" : "agent"));
    button.setAttribute("aria-label", `Column ${column + 1}: ${words.join(", ") || "empty"}`);
  });
  board.classList.toggle("play-waits", isVisitorsTurn());
}

function outcome() {
  if (game.winner === null) return "A draw.";
  return game.winner === visitor ? "You win." : "The agent wins.";
}

async function begin() {
  game = new Game();
  visitor = root.querySelector("input[name=first]:checked").value === "visitor" ? 0 : 1;
  detail.textContent = "";
  status.textContent = "You begin: choose a column.";
  show();
  if (visitor === 1) await letAgentPlay();
}

async function playColumn(column) {
  if (!isVisitorsTurn() || !game.allows(column)) return;
  show(game.play(column));
  if (game.isOver) status.textContent = outcome();
  else await letAgentPlay();
}

async function letAgentPlay() {
  const played = game; // Another game may begin meanwhile.
  status.textContent = "The agent's turn.";
  try {
    const [{ action, value }] = await Promise.all([
      agent.act(observe(game)),
      new Promise((resolve) => setTimeout(resolve, PAUSE_MS)),
    ]);
    if (game !== played) return;
    show(game.play(action));
    const move = `The agent plays column ${action + 1}.`;
    status.textContent = game.isOver ? `${move} ${outcome()}` : `${move} Your turn.`;
    const expected = value.toFixed(2);
    detail.textContent = `Before this move, its critic expected ${expected} (near 1: it wins, near −1: you win).`;
  } catch (error) {
    if (game === played) status.textContent = `The agent cannot move: ${error.message}`;
  }
}

columns.forEach((button, column) => button.addEventListener("click", () => playColumn(column)));
newGame.addEventListener("click", begin);
root.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || !game || event.target.matches("input")) return;
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  const focused = columns.indexOf(document.activeElement);
  if (step && focused >= 0) columns[(focused + step + COLUMNS) % COLUMNS].focus();
  else if (event.key >= "1" && event.key <= String(COLUMNS)) playColumn(Number(event.key) - 1);
  else if (event.key.toLowerCase() === "n") begin();
  else return;
  event.preventDefault();
  event.stopPropagation(); // The theme has keys of its own, such as N for the next page.
});

try {
  agent = await Agent.load(new URL("connect-four.onnx", import.meta.url));
  newGame.disabled = false;
  await begin();
} catch (error) {
  status.textContent = error.message;
}
