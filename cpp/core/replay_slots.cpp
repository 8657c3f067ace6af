#include "core/replay_slots.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "core/racing_copy.h"

namespace rollmill {
namespace {

constexpr int slot_bits = 32;
constexpr std::int64_t slot_mask = (std::int64_t{1} << slot_bits) - 1;
constexpr std::int64_t generation_mask = (std::int64_t{1} << 31) - 1;

std::int64_t slot_of(std::int64_t link) noexcept { return link & slot_mask; }

std::int64_t load(const std::int64_t* word) noexcept {
    return std::atomic_ref<std::int64_t>(*const_cast<std::int64_t*>(word)).load(std::memory_order_acquire);
}

void store(std::int64_t* word, std::int64_t value) noexcept {
    std::atomic_ref<std::int64_t>(*word).store(value, std::memory_order_release);
}

}  // namespace

std::int64_t ReplaySlots::link_to(std::int64_t slot) const noexcept {
    return slot | (load(arrays_.generation + slot) & generation_mask) << slot_bits;
}

bool ReplaySlots::is_alive(std::int64_t link) const noexcept { return link != no_link && link == link_to(slot_of(link)); }

void ReplaySlots::begin(std::int64_t slot, std::int64_t previous) noexcept {
    store(arrays_.next + slot, no_link);
    store(arrays_.previous + slot, previous < 0 ? no_link : link_to(previous));
    if (previous >= 0) store(arrays_.next + previous, link_to(slot));
}

// Whether the stack of x_t can be made: every frame of it is there, back to the episode's first.
bool ReplaySlots::has_history(std::int64_t slot, std::int64_t step, std::int64_t row) const noexcept {
    for (std::int64_t back = 0; back < shape_.history; ++back) {
        if (racing_load(arrays_.reset + cell(slot, step, row)) != 0) return true;
        if (step == 0) {
            const std::int64_t previous = load(arrays_.previous + slot);
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

// The leaf of a step that misses nothing behind it becomes live, unless frames before it are gone.
void ReplaySlots::add_if_shown(std::int64_t slot, std::int64_t step, std::int64_t row,
                               std::vector<std::int64_t>& live) const {
    if (step < 0) {
        const std::int64_t previous = load(arrays_.previous + slot);
        if (!is_alive(previous)) return;
        slot = slot_of(previous);
        step += shape_.steps;
    }
    if (step >= shape_.history || has_history(slot, step, row)) live.push_back(leaf(slot, step, row));
}

// Single transitions that `step` was the last missing step of.
void ReplaySlots::find_whole(std::int64_t slot, std::int64_t step, std::int64_t row, bool is_valid,
                             std::int64_t* pending, std::vector<std::int64_t>& live) const {
    const std::int64_t at = leaf(slot, step, row);
    pending[row] += is_valid;
    // A row that is not valid is the end of what came before it: x_t stands there to bootstrap from.
    const bool ends = !is_valid || arrays_.terminated[at] != 0 || arrays_.truncated[at] != 0;
    const std::int64_t last = is_valid ? step : step - 1;
    std::int64_t ready = ends ? pending[row] : pending[row] == shape_.n_step ? 1 : 0;
    for (std::int64_t i = last - pending[row] + 1; ready > 0; ++i, --ready, --pending[row])
        add_if_shown(slot, i, row, live);
}

std::int64_t ReplaySlots::commit(std::int64_t slot, std::int64_t step, std::int64_t* pending) {
    std::vector<std::int64_t> live;
    live.reserve(static_cast<std::size_t>(shape_.rows));
    // A slot's steps are a whole number of strides, so it does not matter which slot the window begins in.
    const std::int64_t begin = step - shape_.window + 1;
    const bool is_window = shape_.window > 0 && (begin + shape_.steps) % shape_.stride == 0;
    std::int64_t valid = 0;
    for (std::int64_t row = 0; row < shape_.rows; ++row) {
        const bool is_valid = arrays_.valid[leaf(slot, step, row)] != 0;
        valid += is_valid;
        if (shape_.window == 0)
            find_whole(slot, step, row, is_valid, pending, live);
        else if (is_window)
            add_if_shown(slot, begin, row, live);
    }
    if (live.empty()) return valid;
    auto held = tree_.hold();
    held.assign(live, held.maximum());
    return valid;
}

void ReplaySlots::evict(std::int64_t slot) {
    const std::int64_t next = load(arrays_.next + slot), previous = load(arrays_.previous + slot);
    std::vector<std::int64_t> dying;
    if (shape_.history > 0 && is_alive(next)) {
        // It is not told here which of the frames they need, but what is asked is answered as if this one were gone.
        const std::int64_t successor = slot_of(next);
        for (std::int64_t row = 0; row < shape_.rows; ++row)
            for (std::int64_t step = 0; step < std::min(shape_.history, shape_.steps); ++step) {
                if (racing_load(arrays_.reset + cell(successor, step, row)) != 0) break;
                dying.push_back(leaf(successor, step, row));
            }
    }
    if (is_alive(previous)) {
        const std::int64_t predecessor = slot_of(previous);
        const std::int64_t needed = shape_.window > 0 ? shape_.window : shape_.n_step;
        for (std::int64_t row = 0; row < shape_.rows; ++row)
            for (std::int64_t step = shape_.steps - needed + 1; step < shape_.steps; ++step)
                // A window's other leaves are 0 already.
                if (shape_.window > 0 ? step % shape_.stride == 0 : !ends_within(predecessor, step, row))
                    dying.push_back(leaf(predecessor, step, row));
    }
    {
        // In this order, so that a file which is found half way through still has no step that misses another.
        auto held = tree_.hold();
        held.assign(dying, 0.0f);
        held.fill(leaf(slot, 0, 0), shape_.steps * shape_.rows, 0.0f);
        store(arrays_.generation + slot, arrays_.generation[slot] + 1);
    }
    // What is written into the slot from here on comes after the new generation.
    order_writes();
}

// One look at the tree: the sum, the priorities and the generations belong together.
bool ReplaySlots::look_at_tree(Random& random, std::int64_t count, bool stratified, std::int64_t* leaves,
                               float* priorities, std::int64_t* generations, Look* look) {
    auto held = tree_.hold();
    if (!held.draw(random, stratified, {leaves, static_cast<std::size_t>(count)}, {priorities, static_cast<std::size_t>(count)})) return false;
    look->total = static_cast<double>(held.total());
    look->minimum = tree_.has_minimum() ? static_cast<double>(held.minimum()) : 0.0;
    for (std::int64_t i = 0; i < count; ++i)
        generations[i] = load(arrays_.generation + leaves[i] / (shape_.steps * shape_.rows));
    return true;
}

bool ReplaySlots::draw(Random& random, std::int64_t count, bool stratified, const ReturnRule& rule, const Drawn& out,
                       Look* look) {
    if (!look_at_tree(random, count, stratified, out.leaf, out.priority, out.generation, look)) return false;
    for (std::int64_t i = 0; i < count; ++i) walk(i, rule, out);
    return true;
}

bool ReplaySlots::draw_windows(Random& random, std::int64_t count, bool stratified, const ReturnRule& rule,
                               const DrawnWindows& out, Look* look) {
    if (!look_at_tree(random, count, stratified, out.leaf, out.priority, out.generation, look)) return false;
    for (std::int64_t i = 0; i < count; ++i) walk_window(i, count, rule, out);
    return true;
}

std::int64_t ReplaySlots::own_link(std::int64_t slot, std::int64_t generation) const noexcept {
    return slot | (generation & generation_mask) << slot_bits;
}

// From a step forward, to where the bootstrap's value comes from. `next` is the link to the slot behind it, or no_link
// as long as nobody has looked for it.
ReplaySlots::Ahead ReplaySlots::look_ahead(std::int64_t slot, std::int64_t step, std::int64_t row,
                                           const ReturnRule& rule, std::int64_t* next) const noexcept {
    Ahead ahead{0.0, 1.0, 0, slot, step, true};
    while (ahead.length < shape_.n_step) {
        if (ahead.step == shape_.steps) {
            if (*next == no_link) *next = load(arrays_.next + ahead.slot);
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
        ahead.reward += ahead.discount * std::clamp(scaled, -rule.clip, rule.clip);
        ahead.discount *= rule.discount;
        ++ahead.step;
        ++ahead.length;
        if (racing_load(arrays_.terminated + at) != 0) {
            ahead.discount = 0.0;
            break;
        }
        if (racing_load(arrays_.truncated + at) != 0) break;
    }
    return ahead;
}

void ReplaySlots::walk(std::int64_t index, const ReturnRule& rule, const Drawn& out) const noexcept {
    const std::int64_t first = out.leaf[index], row = first % shape_.rows, generation = out.generation[index];
    const std::int64_t slot = first / (shape_.steps * shape_.rows), step = first / shape_.rows % shape_.steps;
    std::int64_t* witness = out.witness + 3 * index;
    witness[1] = no_link;
    witness[2] = needs_previous(slot, step, row) ? load(arrays_.previous + slot) : no_link;
    const Ahead ahead = look_ahead(slot, step, row, rule, witness + 1);
    // The leaf was live when it was drawn, so a slot without the next one that it needs is another one by now.
    witness[0] = own_link(slot, ahead.is_whole ? generation : generation - 1);
    out.now[index] = cell(slot, step, row);
    out.then[index] = cell(ahead.slot, ahead.step, row);
    out.reward[index] = static_cast<float>(ahead.reward);
    out.discount[index] = static_cast<float>(ahead.discount);
}

void ReplaySlots::walk_window(std::int64_t index, std::int64_t count, const ReturnRule& rule,
                              const DrawnWindows& out) const noexcept {
    const std::int64_t first = out.leaf[index], row = first % shape_.rows, generation = out.generation[index];
    const std::int64_t slot = first / (shape_.steps * shape_.rows), step = first / shape_.rows % shape_.steps;
    std::int64_t* witness = out.witness + 3 * index;
    witness[1] = no_link;
    witness[2] = needs_previous(slot, step, row) ? load(arrays_.previous + slot) : no_link;
    bool is_whole = true;
    if (step + shape_.window > shape_.steps) {
        witness[1] = load(arrays_.next + slot);
        is_whole = witness[1] != no_link;
    }
    witness[0] = own_link(slot, is_whole ? generation : generation - 1);
    // What is torn is drawn anew, but must be read from somewhere until then.
    const std::int64_t behind = is_whole ? slot_of(witness[1]) : slot;
    const std::int64_t burn_in = shape_.window - out.learned - shape_.n_step + 1;
    for (std::int64_t k = 0; k <= shape_.window; ++k) {
        const std::int64_t at = step + k;
        // x_T stands in both slots; that of the first one needs no second.
        out.cells[k * count + index] =
            at <= shape_.steps ? cell(slot, at, row) : cell(behind, at - shape_.steps, row);
        if (k == shape_.window) break;
        const std::int64_t of = at < shape_.steps ? slot : behind, when = at % shape_.steps;
        out.steps[k * count + index] = leaf(of, when, row);
        if (k < burn_in || k >= burn_in + out.learned) continue;
        const std::int64_t place = (k - burn_in) * count + index;
        out.then[place] = k;
        out.reward[place] = out.discount[place] = 0.0f;
        if (racing_load(arrays_.valid + leaf(of, when, row)) == 0) continue;
        std::int64_t next = of == slot ? witness[1] : no_link;
        const Ahead ahead = look_ahead(of, when, row, rule, &next);
        out.then[place] = k + ahead.length;
        out.reward[place] = static_cast<float>(ahead.reward);
        out.discount[place] = static_cast<float>(ahead.discount);
    }
}

std::int64_t ReplaySlots::find_torn(const std::int64_t* witness, std::int64_t count,
                                    std::uint8_t* torn) const noexcept {
    // Each load of the copies that are asked about was an acquire, so the generations read here are no older.
    std::int64_t found = 0;
    for (std::int64_t i = 0; i < count; ++i) {
        bool is_torn = false;
        for (std::int64_t j = 0; j < 3; ++j) {
            const std::int64_t link = witness[3 * i + j];
            is_torn = is_torn || (link != no_link && !is_alive(link));
        }
        torn[i] = is_torn;
        found += is_torn;
    }
    return found;
}

void ReplaySlots::gather_stacks(std::byte* dst, const std::byte* frames, const std::int64_t* cells, std::int64_t count,
                                std::int64_t depth, std::size_t frame_bytes, bool repeat) const noexcept {
    const std::int64_t per_slot = (shape_.steps + 1) * shape_.rows;
    for (std::int64_t i = 0; i < count; ++i) {
        std::byte* stack = dst + static_cast<std::size_t>(i * depth) * frame_bytes;
        std::int64_t slot = cells[i] / per_slot, step = cells[i] % per_slot / shape_.rows;
        const std::int64_t row = cells[i] % shape_.rows;
        for (std::int64_t place = depth - 1; place >= 0; --place) {
            const std::int64_t at = cell(slot, step, row);
            std::byte* frame = stack + static_cast<std::size_t>(place) * frame_bytes;
            racing_copy(frame, frames + static_cast<std::size_t>(at) * frame_bytes, frame_bytes);
            if (place == 0) break;
            if (racing_load(arrays_.reset + at) != 0) {
                for (std::int64_t earlier = 0; earlier < place; ++earlier) {
                    std::byte* padded = stack + static_cast<std::size_t>(earlier) * frame_bytes;
                    if (repeat)
                        std::memcpy(padded, frame, frame_bytes);
                    else
                        std::memset(padded, 0, frame_bytes);
                }
                break;
            }
            if (step == 0) {
                const std::int64_t previous = load(arrays_.previous + slot);
                if (previous == no_link) break;  // evicted since it was drawn, which find_torn tells
                slot = slot_of(previous);
                step = shape_.steps;
            }
            --step;
        }
    }
}

}  // namespace rollmill
