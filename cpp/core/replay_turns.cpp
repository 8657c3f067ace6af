// Turns: transitions of rows that do not act at every step.
//
//     acts   valid
//      1      1     a turn
//      1      0     the final observation of a truncated agent, or its environment failed: ends the turns before it
//      0      0     transparent: its reward belongs to the turn before it; the episode may end with it
#include <algorithm>

#include "core/replay_slots.h"

namespace rollmill {

// Adds the transitions that `step` and x_{step+1} complete.
void ReplaySlots::find_whole_turns(std::int64_t slot, std::int64_t step, std::int64_t row, bool is_valid,
                                   std::int64_t* pending) {
    std::int64_t& count = pending[row];
    count += is_valid;
    if (count == 0) return;
    const std::int64_t at = leaf(slot, step, row), then = cell(slot, step + 1, row);
    const bool acts_now = arrays_.acts[cell(slot, step, row)] != 0, acts_then = arrays_.acts[then] != 0;
    const bool truncated = arrays_.truncated[at] != 0;
    const bool ends = (acts_now && !is_valid) || arrays_.terminated[at] != 0 || (truncated && acts_then);
    // Without a final observation there is nothing to bootstrap from. An episode that begins without an end of the one
    // before it is that of an environment that was rebuilt while the row did not act.
    const bool is_lost = !ends && (truncated || (acts_then && arrays_.reset[then] != 0));
    const std::int64_t ready = ends ? count : is_lost ? 0 : acts_then && count == shape_.n_step ? 1 : 0;
    if (ready > 0) add_turns(slot, step, row, count, ready);
    count = ends || is_lost ? 0 : count - ready;
}

// Makes the oldest `ready` of the row's last `pending` turns live, which end at `step` or before it.
void ReplaySlots::add_turns(std::int64_t slot, std::int64_t step, std::int64_t row, std::int64_t pending,
                            std::int64_t ready) {
    for (bool is_first_slot = true; pending > 0; --step) {
        if (step < 0) {
            const std::int64_t previous = racing_load(arrays_.previous + slot);
            // Links do not reach the slot before the previous one.
            if (!is_first_slot || !is_alive(previous)) return;
            slot = slot_of(previous);
            step = shape_.steps - 1;
            is_first_slot = false;
        }
        const std::int64_t at = leaf(slot, step, row);
        if (arrays_.valid[at] == 0) continue;
        if (pending <= ready) add_live(slot, step, row);
        --pending;
    }
}

// Adds the leaves of a full slot whose transitions end in the next one.
void ReplaySlots::add_turns_into_next(std::int64_t slot) {
    for (std::int64_t row = 0; row < shape_.rows; ++row) {
        // Observations at which the row acts, from behind the step to x_T: the n-th one is where its transition ends.
        std::int64_t following = arrays_.acts[cell(slot, shape_.steps, row)] != 0;
        for (std::int64_t step = shape_.steps - 1; step >= 0 && following < shape_.n_step; --step) {
            const std::int64_t at = leaf(slot, step, row);
            if (arrays_.terminated[at] != 0 || arrays_.truncated[at] != 0) break;
            if (arrays_.acts[cell(slot, step, row)] == 0) continue;
            if (arrays_.valid[at] == 0) break;
            lost_.push_back(at);
            ++following;
        }
    }
}

// As look_ahead, along turns.
ReplaySlots::Ahead ReplaySlots::look_ahead_turns(std::int64_t slot, std::int64_t step, std::int64_t row,
                                                 const ReturnRule& rule, std::int64_t* next) const noexcept {
    Ahead ahead{{}, 0, slot, step, true};
    double reward = 0.0;  // of the turn so far
    while (ahead.length < shape_.n_step) {
        if (ahead.step == shape_.steps) {
            // No live transition needs a third slot, so one of these has been overwritten.
            const bool is_in_next = *next != no_link;
            if (!is_in_next) *next = racing_load(arrays_.next + ahead.slot);
            if (is_in_next || *next == no_link) {
                ahead.is_whole = false;
                break;
            }
            ahead.slot = slot_of(*next);
            ahead.step = 0;
        }
        const std::int64_t at = leaf(ahead.slot, ahead.step, row);
        if (ahead.length > 0 && acts(ahead.slot, ahead.step, row) && racing_load(arrays_.valid + at) == 0) break;
        reward += static_cast<double>(racing_load(arrays_.reward + at));
        const bool terminated = racing_load(arrays_.terminated + at) != 0;
        const bool ends = terminated || racing_load(arrays_.truncated + at) != 0;
        ++ahead.step;
        if (!ends && !acts(ahead.slot, ahead.step, row)) continue;
        ahead.add(std::clamp(rule.scale * reward, -rule.clip, rule.clip), rule.discount, terminated);
        reward = 0.0;
        ++ahead.length;
        if (ends) break;
    }
    return ahead;
}

}  // namespace rollmill
