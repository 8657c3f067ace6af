// The rules of connect four, and what the agent observes of a game.

export const ROWS = 6;
export const COLUMNS = 7;
export const EMPTY = -1;
const DIRECTIONS = [[0, 1], [1, 0], [1, 1], [1, -1]];

/**
 * A game. The players are 0, who begins, and 1.
 *
 * `board[row * COLUMNS + column]` is a player or EMPTY, the top row first. `winner` is a player, or null; `line` holds
 * the squares of the winner's four in a row.
 */
export class Game {
  board = new Int8Array(ROWS * COLUMNS).fill(EMPTY);
  player = 0;
  winner = null;
  line = [];

  get isOver() {
    return this.winner !== null || !this.board.includes(EMPTY);
  }

  /** Whether a stone may be put into the column. */
  allows(column) {
    return !this.isOver && this.board[column] === EMPTY;
  }

  /**
   * Put a stone of the player to move into a column.
   *
   * @returns {number} The square where the stone lies.
   */
  play(column) {
    if (!this.allows(column)) throw new RangeError(`column ${column} allows no move`);
    let row = ROWS - 1;
    while (this.board[row * COLUMNS + column] !== EMPTY) row -= 1;
    this.board[row * COLUMNS + column] = this.player;
    this.line = this.#lineThrough(row, column);
    if (this.line.length) this.winner = this.player;
    this.player = 1 - this.player;
    return row * COLUMNS + column;
  }

  #lineThrough(row, column) {
    const owner = this.board[row * COLUMNS + column];
    const isOwners = (r, c) =>
      r >= 0 && r < ROWS && c >= 0 && c < COLUMNS && this.board[r * COLUMNS + c] === owner;
    const squares = new Set();
    for (const [down, right] of DIRECTIONS) {
      let [r, c] = [row, column];
      while (isOwners(r - down, c - right)) [r, c] = [r - down, c - right];
      const found = [];
      for (; isOwners(r, c); [r, c] = [r + down, c + right]) found.push(r * COLUMNS + c);
      if (found.length >= 4) found.forEach((square) => squares.add(square));
    }
    return [...squares];
  }
}

/** What the player to move observes: two planes, the own stones and the opponent's, and the mask of allowed moves. */
export function observe(game) {
  const obs = new Int8Array(ROWS * COLUMNS * 2);
  game.board.forEach((owner, square) => {
    if (owner !== EMPTY) obs[2 * square + (owner === game.player ? 0 : 1)] = 1;
  });
  const mask = Uint8Array.from({ length: COLUMNS }, (_, column) => Number(game.allows(column)));
  return {
    obs: { dtype: "int8", shape: [ROWS, COLUMNS, 2], data: obs },
    action_mask: { dtype: "bool", shape: [COLUMNS], data: mask },
  };
}
