// The physics of Gymnasium's CartPole-v1, and what the agent observes of it.

const GRAVITY = 9.8;
const CART_MASS = 1.0;
const POLE_MASS = 0.1;
const TOTAL_MASS = CART_MASS + POLE_MASS;
export const HALF_POLE = 0.5; // m
const POLE_MASS_LENGTH = POLE_MASS * HALF_POLE;
const FORCE = 10.0; // N
export const TIME_STEP = 0.02; // s
export const MAX_POSITION = 2.4; // m
export const MAX_ANGLE = (12 * 2 * Math.PI) / 360;
/** Steps after which Gymnasium ends an episode. */
export const TIME_LIMIT = 500;

/** A random first state: cart position, cart velocity, pole angle, angular velocity. */
export function firstState(random = Math.random) {
  return Array.from({ length: 4 }, () => -0.05 + 0.1 * random());
}

/**
 * One time step by Euler's method.
 *
 * @param {number[]} state Position, velocity, angle, angular velocity; SI units and radians.
 * @param {number} action 0: the motor pushes the cart to the left, 1: to the right.
 * @param {number} push A further force on the cart, in N.
 */
export function step([x, velocity, angle, spin], action, push = 0) {
  const force = (action === 1 ? FORCE : -FORCE) + push;
  const [cos, sin] = [Math.cos(angle), Math.sin(angle)];
  const temp = (force + POLE_MASS_LENGTH * (spin * spin) * sin) / TOTAL_MASS;
  const spinChange =
    (GRAVITY * sin - cos * temp) / (HALF_POLE * (4.0 / 3.0 - (POLE_MASS * (cos * cos)) / TOTAL_MASS));
  const acceleration = temp - (POLE_MASS_LENGTH * spinChange * cos) / TOTAL_MASS;
  return [
    x + TIME_STEP * velocity,
    velocity + TIME_STEP * acceleration,
    angle + TIME_STEP * spin,
    spin + TIME_STEP * spinChange,
  ];
}

/** Whether the cart has left its track or the pole has fallen. */
export function hasFailed([x, , angle]) {
  return Math.abs(x) > MAX_POSITION || Math.abs(angle) > MAX_ANGLE;
}

/** What the agent observes. */
export function observe(state) {
  return { obs: { dtype: "float32", shape: [4], data: Float32Array.from(state) } };
}
