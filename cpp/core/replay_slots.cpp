#include "core/replay_slots.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/racing_copy.h"

namespace rollmill {
namespace {

constexpr std::int64_t generation_mask = (std::int64_t{1} << 31) - 1;

}  // namespace

ReplaySlots::Batch::Batch(const ReplayShape& shape, std::span<std::int64_t> leaf_array, std::span<float> weight_array,
                          std::span<float> reward_array, std::span<float> discount_array,
                          std::span<std::int64_t> then_array, std::size_t tree_index)
    : DrawnBatch{leaf_array, weight_array, {}, {}}, tree(tree_index), reward(reward_array), discount(discount_array),
      then(then_array) {
    const std::size_t size = leaves.size();
    cells.resize(size * static_cast<std::size_t>(shape.window == 0 ? 2 : shape.window + 1));
    steps.resize(size * static_cast<std::size_t>(shape.window));
    states.resize(size);
    generations.resize(size);
    links.resize(size);
}

ReplaySlots::ReplaySlots(std::span<const SumTree> trees, const ReplayShape& shape, const ReplayArrays& arrays)
    : trees_(trees.begin(), trees.end()), shape_(shape), arrays_(arrays), live_(trees.size()) {
    const std::int64_t most = (shape.history + std::max(shape.n_step, shape.window)) * shape.rows;
    lost_.reserve(static_cast<std::size_t>(most));
    for (auto& leaves : live_) leaves.reserve(static_cast<std::size_t>(most));
}

std::int64_t ReplaySlots::link_to(std::int64_t slot) const noexcept {
    return slot | (racing_load(arrays_.generation + slot) & generation_mask) << slot_bits;
}

bool ReplaySlots::is_alive(std::int64_t link) const noexcept { return link != no_link && link == link_to(slot_of(link)); }

void ReplaySlots::begin(std::int64_t slot, std::int64_t previous) noexcept {
    racing_store(arrays_.next + slot, no_link);
    racing_store(arrays_.previous + slot, previous < 0 ? no_link : link_to(previous));
    if (previous >= 0) racing_store(arrays_.next + previous, link_to(slot));
}

// Whether the stack of x_t can be made: every frame of it is there, back to the episode's first.
bool ReplaySlots::has_history(std::int64_t slot, std::int64_t step, std::int64_t row) const noexcept {
    for (std::int64_t back = 0; back < shape_.history; ++back) {
        if (racing_load(arrays_.reset + cell(slot, step, row)) != 0) return true;
        if (step == 0) {
            const std::int64_t previous = racing_load(arrays_.previous + slot);
            if (!is_alive(previous)) return false;
            slot = slot_of(previous);
            step = shape_.steps;  // the same observation
        }
        --step;
    }
    return true;
}

// Whether the stack of x_t, t < history, reaches back into the previous slot.
bool ReplaySlots::needs_previous(std::int64_t slot, std::int64_t step, std::int64_t row) const noexcept {
    if (step >= shape_.history) return false;
    for (std::int64_t at = step; at >= 0; --at)
        if (racing_load(arrays_.reset + cell(slot, at, row)) != 0) return false;
    return true;
}

// Whether the row's episode ends, or its environment fails, at a step from `first` to the slot's last one.
bool ReplaySlots::ends_within(std::int64_t slot, std::int64_t first, std::int64_t row) const noexcept {
    for (std::int64_t step = first; step < shape_.steps; ++step) {
        const std::int64_t at = leaf(slot, step, row);
        if (arrays_.terminated[at] != 0 || arrays_.truncated[at] != 0 || arrays_.valid[at] == 0) return true;
    }
    return false;
}

// Makes the leaf of a step live whose later steps exist, unless frames before it are gone.
void ReplaySlots::add_if_shown(std::int64_t slot, std::int64_t step, std::int64_t row) {
    if (step < 0) {
        const std::int64_t previous = racing_load(arrays_.previous + slot);
        if (!is_alive(previous)) return;
        slot = slot_of(previous);
        step += shape_.steps;
    }
    if (step >= shape_.history || has_history(slot, step, row)) add_live(slot, step, row);
}

// Adds the transitions that `step` completes.
void ReplaySlots::find_whole(std::int64_t slot, std::int64_t step, std::int64_t row, bool is_valid,
                             std::int64_t* pending) {
    const std::int64_t at = leaf(slot, step, row);
    pending[row] += is_valid;
    // A row that is not valid ends the steps before it, which bootstrap from its x_t.
    const bool ends = !is_valid || arrays_.terminated[at] != 0 || arrays_.truncated[at] != 0;
    const std::int64_t last = is_valid ? step : step - 1;
    std::int64_t ready = ends ? pending[row] : pending[row] == shape_.n_step ? 1 : 0;
    for (std::int64_t i = last - pending[row] + 1; ready > 0; ++i, --ready, --pending[row])
        add_if_shown(slot, i, row);
}

void ReplaySlots::commit(std::int64_t slot, std::int64_t step, std::int64_t* pending, std::int64_t* counts) {
    for (auto& leaves : live_) leaves.clear();
    std::fill_n(counts, trees_.size(), std::int64_t{0});
    // A slot's steps are a whole number of strides, so this holds in whichever slot the window begins.
    const std::int64_t begin = step - shape_.window + 1;
    const bool is_window = shape_.window > 0 && (begin + shape_.steps) % shape_.stride == 0;
    for (std::int64_t row = 0; row < shape_.rows; ++row) {
        const bool is_valid = arrays_.valid[leaf(slot, step, row)] != 0;
        if (is_valid)
            if (const std::size_t tree = tree_of(slot, step, row); tree < trees_.size()) ++counts[tree];
        if (arrays_.acts != nullptr)
            find_whole_turns(slot, step, row, is_valid, pending);
        else if (shape_.window == 0)
            find_whole(slot, step, row, is_valid, pending);
        else if (is_window)
            add_if_shown(slot, begin, row);
    }
    for (std::size_t tree = 0; tree < trees_.size(); ++tree) {
        if (live_[tree].empty()) continue;
        auto held = trees_[tree].hold();
        held.assign(live_[tree], held.maximum());
    }
}

void ReplaySlots::evict(std::int64_t slot) {
    const std::int64_t next = racing_load(arrays_.next + slot), previous = racing_load(arrays_.previous + slot);
    lost_.clear();  // those that need this slot
    if (shape_.history > 0 && is_alive(next)) {
        // Whether their stacks reach back into this slot is decided as if it were gone.
        const std::int64_t successor = slot_of(next);
        for (std::int64_t row = 0; row < shape_.rows; ++row)
            for (std::int64_t step = 0; step < std::min(shape_.history, shape_.steps); ++step) {
                if (racing_load(arrays_.reset + cell(successor, step, row)) != 0) break;
                lost_.push_back(leaf(successor, step, row));
            }
    }
    if (is_alive(previous) && arrays_.acts != nullptr) {
        add_turns_into_next(slot_of(previous));
    } else if (is_alive(previous)) {
        const std::int64_t predecessor = slot_of(previous);
        const std::int64_t needed = shape_.window > 0 ? shape_.window : shape_.n_step;
        for (std::int64_t row = 0; row < shape_.rows; ++row)
            for (std::int64_t step = shape_.steps - needed + 1; step < shape_.steps; ++step)
                // A window's other leaves are 0 already.
                if (shape_.window > 0 ? step % shape_.stride == 0 : !ends_within(predecessor, step, row))
                    lost_.push_back(leaf(predecessor, step, row));
    }
    for (std::size_t tree = 0; tree < trees_.size(); ++tree) {
        // In this order, so that a file left in between has no live step that lacks another.
        auto held = trees_[tree].hold();
        held.assign(lost_, 0.0f);
        held.fill(leaf(slot, 0, 0), shape_.steps * shape_.rows, 0.0f);
        // When no tree has a step of the slot: a draw of any tree that found one has noted the generation before.
        if (tree + 1 == trees_.size()) racing_store(arrays_.generation + slot, arrays_.generation[slot] + 1);
    }
    // Later writes to the slot become visible after the new generation.
    order_writes();
}

std::int64_t ReplaySlots::own_link(std::int64_t slot, std::int64_t generation) const noexcept {
    return slot | (generation & generation_mask) << slot_bits;
}

// Follows a step to the observation that it bootstraps from. `next` is the link to the next slot, or no_link until it
// has been read.
ReplaySlots::Ahead ReplaySlots::look_ahead(std::int64_t slot, std::int64_t step, std::int64_t row,
                                           const ReturnRule& rule, std::int64_t* next) const noexcept {
    Ahead ahead{{}, 0, slot, step, true};
    while (ahead.length < shape_.n_step) {
        if (ahead.step == shape_.steps) {
            if (*next == no_link) *next = racing_load(arrays_.next + ahead.slot);
            if (*next == no_link) {
                ahead.is_whole = false;
                break;
            }
            ahead.slot = slot_of(*next);
            ahead.step = 0;
        }
        const std::int64_t at = leaf(ahead.slot, ahead.step, row);
        if (ahead.length > 0 && racing_load(arrays_.valid + at) == 0) break;
        const double scaled = rule.scale * static_cast<double>(racing_load(arrays_.reward + at));
        const bool terminated = racing_load(arrays_.terminated + at) != 0;
        ahead.add(std::clamp(scaled, -rule.clip, rule.clip), rule.discount, terminated);
        ++ahead.step;
        ++ahead.length;
        if (terminated || racing_load(arrays_.truncated + at) != 0) break;
    }
    return ahead;
}

void ReplaySlots::walk(std::int64_t index, const ReturnRule& rule, Batch& batch) const noexcept {
    const auto [slot, step, row] = step_of(batch.leaves[index]);
    auto& links = batch.links[index];
    links = {no_link, no_link, needs_previous(slot, step, row) ? racing_load(arrays_.previous + slot) : no_link};
    const bool has_turns = arrays_.acts != nullptr;
    const Ahead ahead =
        has_turns ? look_ahead_turns(slot, step, row, rule, &links[1]) : look_ahead(slot, step, row, rule, &links[1]);
    // The leaf was live when it was drawn, so a slot that lacks the next one has been evicted since.
    links[0] = own_link(slot, batch.generations[index] - !ahead.is_whole);
    batch.cells[index] = cell(slot, step, row);
    const bool is_shown = !has_turns || ahead.discount != 0.0;
    batch.cells[batch.size() + index] = is_shown ? cell(ahead.slot, ahead.step, row) : batch.cells[index];
    batch.reward[index] = static_cast<float>(ahead.reward);
    batch.discount[index] = static_cast<float>(ahead.discount);
}

void ReplaySlots::walk_window(std::int64_t index, const ReturnRule& rule, Batch& batch) const noexcept {
    const auto [slot, step, row] = step_of(batch.leaves[index]);
    auto& links = batch.links[index];
    links = {no_link, no_link, needs_previous(slot, step, row) ? racing_load(arrays_.previous + slot) : no_link};
    bool is_whole = true;
    if (step + shape_.window > shape_.steps) {
        links[1] = racing_load(arrays_.next + slot);
        is_whole = links[1] != no_link;
    }
    links[0] = own_link(slot, batch.generations[index] - !is_whole);
    batch.states[index] = (slot * shape_.steps + step) / shape_.stride * shape_.rows + row;
    // A sample whose next slot is gone is drawn again, but has to read from some slot until then.
    const std::int64_t behind = is_whole ? slot_of(links[1]) : slot;
    const std::int64_t burn_in = shape_.window - batch.learned() - shape_.n_step + 1;
    for (std::int64_t k = 0; k <= shape_.window; ++k) {
        const std::int64_t at = step + k;
        // x_T is in both slots; the one in the first slot does not need the second.
        batch.cells[k * batch.size() + index] =
            at <= shape_.steps ? cell(slot, at, row) : cell(behind, at - shape_.steps, row);
        if (k == shape_.window) break;
        const std::int64_t of = at < shape_.steps ? slot : behind, when = at % shape_.steps;
        batch.steps[k * batch.size() + index] = leaf(of, when, row);
        if (k < burn_in || k >= burn_in + batch.learned()) continue;
        const std::int64_t place = (k - burn_in) * batch.size() + index;
        batch.then[place] = k;
        batch.reward[place] = batch.discount[place] = 0.0f;
        if (racing_load(arrays_.valid + leaf(of, when, row)) == 0) continue;
        std::int64_t next = of == slot ? links[1] : no_link;
        const Ahead ahead = look_ahead(of, when, row, rule, &next);
        batch.then[place] = k + ahead.length;
        batch.reward[place] = static_cast<float>(ahead.reward);
        batch.discount[place] = static_cast<float>(ahead.discount);
    }
}

void ReplaySlots::copy_stack(const Stacks& stacks, std::int64_t index) const noexcept {
    std::byte* stack = stacks.to + static_cast<std::size_t>(index * stacks.depth) * stacks.bytes;
    const std::int64_t x = stacks.cells[index], row = x % shape_.rows;
    std::int64_t slot = x / ((shape_.steps + 1) * shape_.rows), step = x / shape_.rows % (shape_.steps + 1);
    for (std::int64_t place = stacks.depth - 1; place >= 0; --place) {
        const std::int64_t at = cell(slot, step, row);
        std::byte* frame = stack + static_cast<std::size_t>(place) * stacks.bytes;
        racing_copy(frame, stacks.frames + static_cast<std::size_t>(at) * stacks.bytes, stacks.bytes);
        if (place == 0) break;
        if (racing_load(arrays_.reset + at) != 0) {
            for (; stack < frame; stack += stacks.bytes)
                stacks.repeat ? std::memcpy(stack, frame, stacks.bytes) : std::memset(stack, 0, stacks.bytes);
            break;
        }
        if (step == 0) {
            const std::int64_t previous = racing_load(arrays_.previous + slot);
            if (previous == no_link) break;  // evicted since it was drawn, as its link shows
            slot = slot_of(previous);
            step = shape_.steps;
        }
        --step;
    }
}

bool ReplaySlots::sample(Random& random, const DrawRule& rule, const ReturnRule& returns, std::int64_t num_items,
                         Batch& batch) {
    // See draw_batch.
    struct Source {
        void begin_look(SumTree::Held&) const noexcept {}
        void found(std::int64_t) const noexcept {}
        std::int64_t end_look() const noexcept {
            const std::int64_t per_slot = slots.shape_.steps * slots.shape_.rows;
            for (const std::int64_t i : batch.pending)
                batch.generations[i] = racing_load(slots.arrays_.generation + batch.leaves[i] / per_slot);
            return num_items;
        }
        bool expects_items() const noexcept { return false; }
        void wait_for_items() const noexcept {}
        void read() const noexcept {
            for (const std::int64_t i : batch.pending)
                slots.shape_.window == 0 ? slots.walk(i, returns, batch) : slots.walk_window(i, returns, batch);
            batch.copy_pending();
            for (const Stacks& stacks : batch.stacks)
                for (std::int64_t t = 0; t < stacks.times; ++t)
                    for (const std::int64_t i : batch.pending) slots.copy_stack(stacks, t * batch.size() + i);
        }
        // Each load of the copies was an acquire, so the generations read here are no older.
        void keep_overwritten() const {
            std::erase_if(batch.pending, [&](std::int64_t i) {
                return std::ranges::all_of(batch.links[i], [&](std::int64_t link) {
                    return link == no_link || slots.is_alive(link);
                });
            });
        }

        const ReplaySlots& slots;
        const ReturnRule& returns;
        std::int64_t num_items;
        Batch& batch;
    };
    return draw_batch(trees_[batch.tree], random, rule, batch, Source{*this, returns, num_items, batch});
}

std::int64_t ReplaySlots::update(const Batch& batch, std::span<const float> priorities, double decay, float least) {
    auto held = trees_[batch.tree].hold();
    held.decay_maximum(decay, least);
    return held.assign_if_alive(batch.leaves, priorities, batch.generations, arrays_.generation,
                                shape_.steps * shape_.rows);
}

}  // namespace rollmill
