// Replay over slots: which of their steps can be drawn, and what a drawn step is a transition to.
//
// A leaf of the sum tree stands for step t of row b of a slot: leaf = (slot * T + t) * B + b. Its life:
//
//     0, being written --commit of the last step that it needs--> maximum priority --update--> its own priority
//       ^                                                                                          |
//       +------------------------------- evict: generation + 1, then written again ---------------+
//
// A step needs the n - 1 steps after it (fewer where the episode ends), which may lie in the row's next slot, and the
// `history` observations before it of which its stack of frames is made, which may lie in the previous one. Slots that
// follow each other in a group are linked both ways; a link holds the other's generation, so one to a slot that was
// evicted is seen to be dead.
//
// Recurrent learners draw windows instead: W steps in a row, and W + 1 observations, whatever ends in between. Then
// only every `stride`-th step of a slot has a leaf that ever becomes live: when the W-th step from it on is committed.
// With W <= T a window lies in two slots at most.
//
// With several agents a row does not act at every step. Its valid steps are its turns. Steps at which it does not act
// are transparent: their rewards belong to the turn before them, and they are not discounted. A transition is n turns of
// a row, from x_t to the first observation behind them at which the row acts. One that does not lie in its slot and the
// next one never becomes live. See replay_turns.cpp.
//
// Several policies may act in the rows of a slot. Then each has a tree of its own over the same leaves, and a step is
// live in the tree of the policy that acted at it. A row changes its policy only where an episode begins, so that all
// steps of a transition are of one policy. Steps of players without a tree are in none.
//
// Who may call what: begin, commit and evict of a slot are for the process that writes it, and for one thread at a time
// of an object. The rest is for any thread of any process. The only waits are those for the tree's lock.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/racing_copy.h"
#include "core/replay_draw.h"
#include "core/sum_tree.h"

namespace rollmill {

struct ReplayShape {
    std::int64_t num_slots;
    std::int64_t steps;    // T
    std::int64_t rows;     // B
    std::int64_t n_step;   // 1..T
    std::int64_t history;  // observations before x_t that are shown with it, 0..T
    std::int64_t window = 0;  // W, n..T, of sequences; 0 for single transitions
    std::int64_t stride = 1;  // steps from the start of one window to the next; divides T
};

// Shared arrays, [num_slots, T(+1), B] or [num_slots].
struct ReplayArrays {
    const float* reward;
    const std::uint8_t* terminated;
    const std::uint8_t* truncated;
    const std::uint8_t* valid;
    const std::uint8_t* reset;  // [num_slots, T + 1, B]
    std::int64_t* generation;
    std::int64_t* next;      // link, or no_link
    std::int64_t* previous;  // link, or no_link
    const std::uint8_t* acts = nullptr;  // [num_slots, T + 1, B]; null where every row acts at every step
    const std::int16_t* policy = nullptr;  // [num_slots, T + 1, B]: which tree; null where all steps are of the first
};

// How rewards add up.
struct ReturnRule {
    double discount;
    double scale;  // factor on each reward, then
    double clip;   // largest magnitude of it
};

class ReplaySlots {
   public:
    static constexpr std::int64_t no_link = -1;

    // Stacks of frames in a batch, [times, size, depth, bytes], the oldest first, that end at a batch's cells.
    struct Stacks {
        std::byte* to;
        const std::byte* frames;  // [cells, bytes]
        const std::int64_t* cells;
        std::int64_t times;
        std::int64_t depth;
        std::size_t bytes;  // of a frame
        bool repeat;        // before an episode's first frame: that frame again, or else zeros
    };

    // What `sample` fills: transitions, or windows of W steps, where what has a time axis has it in front. L = 1 for
    // transitions. The last L + n - 1 of a window's steps are those that are learned from, and those whose rewards
    // their returns need. Observations are counted in cells: (slot * (T + 1) + t) * B + b.
    struct Batch : DrawnBatch {
        // Views of the caller's arrays. Not copyable, because columns refer to its vectors.
        Batch(const ReplayShape& shape, std::span<std::int64_t> leaf, std::span<float> weight, std::span<float> reward,
              std::span<float> discount, std::span<std::int64_t> then, std::size_t tree = 0);
        Batch(const Batch&) = delete;
        Batch& operator=(const Batch&) = delete;

        std::size_t tree;                 // index of the tree that it is drawn from
        std::span<float> reward;          // [L, size]: sum of discount^i r_{t+i}, i < k <= n; 0 for an invalid step
        std::span<float> discount;        // [L, size]: discount^k; 0 for an invalid step, or where the episode terminated
        std::span<std::int64_t> then;     // windows: [L, size], which of the W + 1 observations is x_{t+k}
        // [W + 1, size]: of x_t to x_{t+W}; of transitions [2, size]: x_t, x_{t+k}. With `acts`, x_t again where the
        // episode terminated, because nothing was written for a row that does not act.
        std::vector<std::int64_t> cells;
        std::vector<std::int64_t> steps;  // [W, size], windows only: (slot * T + t) * B + b of each step
        std::vector<std::int64_t> states;  // [size], windows only: (slot * T + t) / stride * B + b of the first step
        std::vector<Stacks> stacks;
        std::vector<std::int64_t> generations;  // [size], of the leaves' slots
        std::vector<std::array<std::int64_t, 3>> links;  // [size], to the slots that were read; no_link for none

        std::int64_t learned() const noexcept { return std::ssize(reward) / size(); }
    };

    // At least one tree; all have the same capacity.
    ReplaySlots(std::span<const SumTree> trees, const ReplayShape& shape, const ReplayArrays& arrays);

    const ReplayShape& shape() const noexcept { return shape_; }
    std::size_t num_trees() const noexcept { return trees_.size(); }

    // --- The slot's writer. Does not allocate.

    // A free slot, all of whose leaves are 0, begins as the successor of `previous` (-1: of none).
    void begin(std::int64_t slot, std::int64_t previous) noexcept;

    // Step t and x_{t+1} are in the slot: steps that are complete now become live. `pending` [B] is the group's count
    // of steps that wait for later ones, 0 at first. `counts` [num_trees] gets how many rows' steps were valid. O(B n).
    void commit(std::int64_t slot, std::int64_t step, std::int64_t* pending, std::int64_t* counts);

    // Removes the slot from the replay, and with it the steps of its neighbours that need it; it must not be
    // overwritten before this returns. O(T B num_trees).
    void evict(std::int64_t slot);

    // --- Any thread of any process.

    // Fills a batch with draws by priority; false, with nothing to be read, if there is nothing to draw. `num_items` is
    // N of the weights.
    bool sample(Random& random, const DrawRule& rule, const ReturnRule& returns, std::int64_t num_items, Batch& batch);

    // Sets the priorities, valid ones, of a batch as it was drawn, where its leaves still stand for the same steps;
    // before, the maximum decays, not below `least`. Returns how many it skipped.
    std::int64_t update(const Batch& batch, std::span<const float> priorities, double decay, float least);

   private:
    static constexpr int slot_bits = 32;
    static constexpr std::int64_t slot_mask = (std::int64_t{1} << slot_bits) - 1;

    // The return of `length` steps, or turns, and where they end: in `slot`, the one in which they begin or the next one.
    struct Ahead : Return {
        std::int64_t length, slot, step;
        bool is_whole;  // else the next slot is needed and gone
    };

    struct Step {
        std::int64_t slot, step, row;
    };
    Step step_of(std::int64_t leaf) const noexcept {
        return {leaf / (shape_.steps * shape_.rows), leaf / shape_.rows % shape_.steps, leaf % shape_.rows};
    }
    std::int64_t leaf(std::int64_t slot, std::int64_t step, std::int64_t row) const noexcept {
        return (slot * shape_.steps + step) * shape_.rows + row;
    }
    std::int64_t cell(std::int64_t slot, std::int64_t step, std::int64_t row) const noexcept {
        return (slot * (shape_.steps + 1) + step) * shape_.rows + row;
    }
    static std::int64_t slot_of(std::int64_t link) noexcept { return link & slot_mask; }
    std::int64_t link_to(std::int64_t slot) const noexcept;
    bool is_alive(std::int64_t link) const noexcept;
    bool needs_previous(std::int64_t slot, std::int64_t step, std::int64_t row) const noexcept;
    bool has_history(std::int64_t slot, std::int64_t step, std::int64_t row) const noexcept;
    bool ends_within(std::int64_t slot, std::int64_t first, std::int64_t row) const noexcept;
    void find_whole(std::int64_t slot, std::int64_t step, std::int64_t row, bool is_valid, std::int64_t* pending);
    // The tree that a step is live in; num_trees() for none.
    std::size_t tree_of(std::int64_t slot, std::int64_t step, std::int64_t row) const noexcept {
        if (arrays_.policy == nullptr) return 0;
        return std::min(static_cast<std::size_t>(arrays_.policy[cell(slot, step, row)]), trees_.size());
    }
    void add_live(std::int64_t slot, std::int64_t step, std::int64_t row) {
        const std::size_t tree = tree_of(slot, step, row);
        if (tree < trees_.size()) live_[tree].push_back(leaf(slot, step, row));
    }
    void add_if_shown(std::int64_t slot, std::int64_t step, std::int64_t row);
    Ahead look_ahead(std::int64_t slot, std::int64_t step, std::int64_t row, const ReturnRule& rule,
                     std::int64_t* next) const noexcept;
    bool acts(std::int64_t slot, std::int64_t step, std::int64_t row) const noexcept {
        return racing_load(arrays_.acts + cell(slot, step, row)) != 0;
    }
    void find_whole_turns(std::int64_t slot, std::int64_t step, std::int64_t row, bool is_valid, std::int64_t* pending);
    void add_turns(std::int64_t slot, std::int64_t step, std::int64_t row, std::int64_t pending, std::int64_t ready);
    void add_turns_into_next(std::int64_t slot);
    Ahead look_ahead_turns(std::int64_t slot, std::int64_t step, std::int64_t row, const ReturnRule& rule,
                           std::int64_t* next) const noexcept;
    std::int64_t own_link(std::int64_t slot, std::int64_t generation) const noexcept;
    void walk(std::int64_t index, const ReturnRule& rule, Batch& batch) const noexcept;
    void walk_window(std::int64_t index, const ReturnRule& rule, Batch& batch) const noexcept;
    void copy_stack(const Stacks& stacks, std::int64_t index) const noexcept;

    std::vector<SumTree> trees_;
    ReplayShape shape_;
    ReplayArrays arrays_;
    // Scratch, whose capacity suffices: of commit, for each tree, and of evict.
    std::vector<std::vector<std::int64_t>> live_;
    std::vector<std::int64_t> lost_;
};

}  // namespace rollmill
