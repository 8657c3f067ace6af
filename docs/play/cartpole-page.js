// The page on which a visitor watches the agent balance a pole, and pushes its cart.

import { Agent } from "./agent.js";
import * as physics from "./cartpole-physics.js";

const PUSH_FORCE = 10; // N, as much as the motor's
const PUSH_STEPS = 5;
const FRAME_MS = 1000 * physics.TIME_STEP;
const FAILED_MS = 1500; // How long a failed episode is shown.
const root = document.getElementById("cartpole");
let agent;
let state;
let steps;
let push = { force: 0, steps: 0 };
let isPaused = matchMedia("(prefers-reduced-motion: reduce)").matches;

root.innerHTML = `
  <canvas class="play-canvas" tabindex="0" role="img" aria-label="A cart on a track balances a pole."></canvas>
  <div class="play-panel">
    <p class="play-status" role="status">The agent is being loaded.</p>
    <p class="play-detail"></p>
    <div class="play-buttons">
      <button type="button" class="md-button play-left" disabled>← Push</button>
      <button type="button" class="md-button play-right" disabled>Push →</button>
      <button type="button" class="md-button play-pause" disabled></button>
      <button type="button" class="md-button play-reset" disabled>Reset</button>
    </div>
    <p class="play-keys">Keys, while the cart or a button has the focus: <kbd>←</kbd> and <kbd>→</kbd> push the cart,
      <kbd>P</kbd> pauses, <kbd>R</kbd> resets.</p>
  </div>`;
const canvas = root.querySelector("canvas");
const status = root.querySelector(".play-status");
const detail = root.querySelector(".play-detail");
const buttons = Object.fromEntries(
  ["left", "right", "pause", "reset"].map((name) => [name, root.querySelector(`.play-${name}`)]),
);

const wait = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

function draw() {
  const ratio = window.devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  const styles = getComputedStyle(canvas);
  const colour = (name) => styles.getPropertyValue(`--play-${name}`);
  const scale = width / (2.2 * physics.MAX_POSITION); // Pixels a metre; the track leaves a margin.
  const [x, , angle] = state;
  const [centre, ground] = [width / 2 + x * scale, height * 0.78];
  const [cartWidth, cartHeight] = [0.5 * scale, 0.3 * scale];

  pen.strokeStyle = colour("track");
  pen.lineWidth = 2;
  pen.beginPath();
  for (const end of [-1, 1]) {
    const side = width / 2 + end * physics.MAX_POSITION * scale;
    pen.moveTo(width / 2, ground);
    pen.lineTo(side, ground);
    pen.moveTo(side, ground - 0.12 * scale);
    pen.lineTo(side, ground + 0.12 * scale);
  }
  pen.stroke();

  pen.fillStyle = colour("cart");
  pen.beginPath();
  pen.roundRect(centre - cartWidth / 2, ground - cartHeight / 2, cartWidth, cartHeight, 0.05 * scale);
  pen.fill();

  const axle = ground - cartHeight / 4;
  const length = 2 * physics.HALF_POLE * scale;
  pen.strokeStyle = colour("pole");
  pen.lineWidth = 0.1 * scale;
  pen.lineCap = "round";
  pen.beginPath();
  pen.moveTo(centre, axle);
  pen.lineTo(centre + length * Math.sin(angle), axle - length * Math.cos(angle));
  pen.stroke();
  pen.fillStyle = colour("axle");
  pen.beginPath();
  pen.arc(centre, axle, 0.045 * scale, 0, 2 * Math.PI);
  pen.fill();

  if (push.steps > 0) {
    const side = Math.sign(push.force);
    const tip = centre - side * (cartWidth / 2 + 0.06 * scale); // The arrow points at the cart.
    pen.fillStyle = colour("push");
    pen.beginPath();
    pen.moveTo(tip, ground);
    pen.lineTo(tip - side * 0.25 * scale, ground - 0.14 * scale);
    pen.lineTo(tip - side * 0.25 * scale, ground + 0.14 * scale);
    pen.fill();
  }
}

function reset() {
  state = physics.firstState();
  steps = 0;
  push = { force: 0, steps: 0 };
  status.textContent = isPaused ? "Paused." : "The agent balances the pole.";
  showNumbers();
}

function showNumbers() {
  const [x, , angle] = state;
  const degrees = (angle * 180) / Math.PI;
  detail.textContent =
    `Step ${steps}` +
    (steps >= physics.TIME_LIMIT ? ` (in training, an episode ends after ${physics.TIME_LIMIT})` : "") +
    `. Cart ${x.toFixed(2)} m, pole ${degrees.toFixed(1)}°.`;
  draw();
}

function setPaused(paused) {
  isPaused = paused;
  buttons.pause.textContent = isPaused ? "Go on" : "Pause";
  status.textContent = isPaused ? "Paused." : "The agent balances the pole.";
}

function pushCart(side) {
  push = { force: side * PUSH_FORCE, steps: PUSH_STEPS };
  if (isPaused) draw();
}

/** Let the agent act once; after a failed episode, begin another one. */
async function advance() {
  const before = state;
  const { action } = await agent.act(physics.observe(before));
  if (state !== before || isPaused) return; // Reset or paused meanwhile.
  state = physics.step(before, action, push.steps > 0 ? push.force : 0);
  steps += 1;
  showNumbers();
  push.steps = Math.max(0, push.steps - 1);
  if (!physics.hasFailed(state)) return;
  const failed = state;
  const what = Math.abs(state[0]) > physics.MAX_POSITION ? "The cart left its track" : "The pole fell";
  status.textContent = `${what} after ${steps} steps.`;
  await wait(FAILED_MS);
  if (state === failed) reset();
}

async function run() {
  let due = performance.now();
  for (;;) {
    if (isPaused || document.hidden) await wait(100);
    else await advance();
    due = Math.max(due + FRAME_MS, performance.now()); // A slow page is slower, and skips no step.
    await wait(due - performance.now());
  }
}

buttons.left.addEventListener("click", () => pushCart(-1));
buttons.right.addEventListener("click", () => pushCart(1));
buttons.pause.addEventListener("click", () => setPaused(!isPaused));
buttons.reset.addEventListener("click", reset);
root.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || !agent) return;
  const act = {
    ArrowLeft: () => pushCart(-1),
    ArrowRight: () => pushCart(1),
    p: () => setPaused(!isPaused),
    r: reset,
  }[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  if (!act) return;
  act();
  event.preventDefault();
  event.stopPropagation(); // The theme has keys of its own, such as P for the previous page.
});

try {
  agent = await Agent.load(new URL("cartpole.onnx", import.meta.url));
  for (const button of Object.values(buttons)) button.disabled = false;
  setPaused(isPaused);
  reset();
  new ResizeObserver(draw).observe(canvas);
  new MutationObserver(draw).observe(document.body, { attributeFilter: ["data-md-color-scheme"] });
  run().catch((error) => { status.textContent = `The agent cannot act: ${error.message}`; });
} catch (error) {
  status.textContent = error.message;
}
