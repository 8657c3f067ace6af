// Replay over slots: which steps of which slots can be learned from now, and what a drawn step is a transition to.
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
// Recurrent learners draw windows instead: W steps in a row, and W + 1 observations, whatever ends in between. Then only
// every `stride`-th step of a slot has a leaf that ever becomes live: when the W-th step from it on is committed. With
// W <= T a window lies in two slots at most.
//
// Who may call what: begin, commit and evict of a slot are for the process that writes it, one thread at a time. The
// rest is for any thread of any process. Nobody waits for anybody but for the tree's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

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
};

// How rewards add up.
struct ReturnRule {
    double discount;
    double scale;  // factor on each reward, then
    double clip;   // largest magnitude of it
};

// What a drawn leaf is, `count` of each. Observations are counted in x-cells: (slot * (T + 1) + t) * B + b.
struct Drawn {
    std::int64_t* leaf;
    std::int64_t* generation;  // of the leaf's slot
    float* priority;
    std::int64_t* now;   // cell of x_t
    std::int64_t* then;  // cell of x_{t+k}, k <= n: where the bootstrap's value comes from
    float* reward;       // sum of discount^i r_{t+i}, i < k
    float* discount;     // discount^k, or 0 where the episode terminated
    std::int64_t* witness;  // [count, 3]: links to the slots that were read; no_link where there was none
};

// What drawn windows are, `count` of each; what has a time axis has it in front. The last `learned` + n - 1 of a window's
// steps are those that are learned from, and those that their rewards are added up over.
struct DrawnWindows {
    std::int64_t learned;
    std::int64_t* leaf;
    std::int64_t* generation;  // of the leaf's slot
    float* priority;
    std::int64_t* cells;    // [W + 1, count]: of x_t .. x_{t+W}
    std::int64_t* steps;    // [W, count]: leaves' numbers of the steps
    std::int64_t* then;     // [learned, count]: which of the W + 1 observations the bootstrap's value comes from
    float* reward;          // [learned, count], as Drawn's; 0 where the step is not valid
    float* discount;        // [learned, count], likewise
    std::int64_t* witness;  // [count, 3], as Drawn's
};

class ReplaySlots {
   public:
    static constexpr std::int64_t no_link = -1;

    ReplaySlots(const SumTree& tree, const ReplayShape& shape, const ReplayArrays& arrays) noexcept
        : tree_(tree), shape_(shape), arrays_(arrays) {}

    const ReplayShape& shape() const noexcept { return shape_; }

    // --- The slot's writer.

    // A free slot, all of whose leaves are 0, begins as the successor of `previous` (-1: of none).
    void begin(std::int64_t slot, std::int64_t previous) noexcept;

    // Step t and x_{t+1} stand in the slot: steps that miss nothing now become live. `pending` [B] is the group's own
    // count of steps that wait for later ones; 0 in the beginning. Returns how many rows' steps were valid. O(B n).
    std::int64_t commit(std::int64_t slot, std::int64_t step, std::int64_t* pending);

    // Takes the slot out of the replay, and with it the steps of its neighbours that need it; until this returns
    // nothing of it may be overwritten. O(T B).
    void evict(std::int64_t slot);

    // --- Anybody.

    // What the tree was when it was drawn from.
    struct Look {
        double total;
        double minimum;  // 0 where the tree keeps none
    };

    // Draws `count` leaves by priority; false, with nothing written, if none is live.
    bool draw(Random& random, std::int64_t count, bool stratified, const ReturnRule& rule, const Drawn& out, Look* look);

    // The same of windows.
    bool draw_windows(Random& random, std::int64_t count, bool stratified, const ReturnRule& rule,
                      const DrawnWindows& out, Look* look);

    // After the copy: torn[i] = 1 where a slot that sample i was read from has been evicted meanwhile. Returns how many.
    std::int64_t find_torn(const std::int64_t* witness, std::int64_t count, std::uint8_t* torn) const noexcept;

    // Stacks of `depth` frames that end with x at each cell, oldest first: frames [cells of x, frame_bytes] into
    // dst [count, depth, frame_bytes]. Before an episode's first frame: zeros, or that frame again (`repeat`).
    void gather_stacks(std::byte* dst, const std::byte* frames, const std::int64_t* cells, std::int64_t count,
                       std::int64_t depth, std::size_t frame_bytes, bool repeat) const noexcept;

   private:
    // Rewards of `length` steps, and where they end: in `slot`, which is the one they begin in or the one behind it.
    struct Ahead {
        double reward, discount;
        std::int64_t length, slot, step;
        bool is_whole;  // else the slot behind was looked for and is gone
    };

    std::int64_t leaf(std::int64_t slot, std::int64_t step, std::int64_t row) const noexcept {
        return (slot * shape_.steps + step) * shape_.rows + row;
    }
    std::int64_t cell(std::int64_t slot, std::int64_t step, std::int64_t row) const noexcept {
        return (slot * (shape_.steps + 1) + step) * shape_.rows + row;
    }
    std::int64_t link_to(std::int64_t slot) const noexcept;
    bool is_alive(std::int64_t link) const noexcept;
    bool needs_previous(std::int64_t slot, std::int64_t step, std::int64_t row) const noexcept;
    bool has_history(std::int64_t slot, std::int64_t step, std::int64_t row) const noexcept;
    bool ends_within(std::int64_t slot, std::int64_t first, std::int64_t row) const noexcept;
    void find_whole(std::int64_t slot, std::int64_t step, std::int64_t row, bool is_valid, std::int64_t* pending,
                    std::vector<std::int64_t>& live) const;
    void add_if_shown(std::int64_t slot, std::int64_t step, std::int64_t row, std::vector<std::int64_t>& live) const;
    bool look_at_tree(Random& random, std::int64_t count, bool stratified, std::int64_t* leaves, float* priorities,
                      std::int64_t* generations, Look* look);
    Ahead look_ahead(std::int64_t slot, std::int64_t step, std::int64_t row, const ReturnRule& rule,
                     std::int64_t* next) const noexcept;
    std::int64_t own_link(std::int64_t slot, std::int64_t generation) const noexcept;
    void walk(std::int64_t index, const ReturnRule& rule, const Drawn& out) const noexcept;
    void walk_window(std::int64_t index, std::int64_t count, const ReturnRule& rule,
                     const DrawnWindows& out) const noexcept;

    SumTree tree_;
    ReplayShape shape_;
    ReplayArrays arrays_;
};

}  // namespace rollmill
