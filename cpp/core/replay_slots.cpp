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

std::int64_t ReplaySlots::commit(std::int64_t slot, std::int64_t step, std::int64_t* pending) {
    std::vector<std::int64_t> live;
    live.reserve(static_cast<std::size_t>(shape_.rows));
    std::int64_t valid = 0;
    for (std::int64_t row = 0; row < shape_.rows; ++row) {
        const std::int64_t at = leaf(slot, step, row);
        const bool is_valid = arrays_.valid[at] != 0;
        valid += is_valid;
        pending[row] += is_valid;
        // A row that is not valid is the end of what came before it: x_t stands there to bootstrap from.
        const bool ends = !is_valid || arrays_.terminated[at] != 0 || arrays_.truncated[at] != 0;
        const std::int64_t last = is_valid ? step : step - 1;
        std::int64_t ready = ends ? pending[row] : pending[row] == shape_.n_step ? 1 : 0;
        for (std::int64_t i = last - pending[row] + 1; ready > 0; ++i, --ready, --pending[row]) {
            std::int64_t of = slot, when = i;
            if (when < 0) {
                const std::int64_t previous = load(arrays_.previous + slot);
                if (!is_alive(previous)) continue;
                of = slot_of(previous);
                when += shape_.steps;
            }
            if (when >= shape_.history || has_history(of, when, row)) live.push_back(leaf(of, when, row));
        }
    }
    if (live.empty()) return valid;
    auto held = tree_.hold();
    const std::vector<float> priorities(live.size(), held.maximum());
    held.assign(live.data(), priorities.data(), static_cast<std::int64_t>(live.size()));
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
        for (std::int64_t row = 0; row < shape_.rows; ++row)
            for (std::int64_t step = shape_.steps - shape_.n_step + 1; step < shape_.steps; ++step)
                if (!ends_within(predecessor, step, row)) dying.push_back(leaf(predecessor, step, row));
    }
    const std::vector<float> zeros(dying.size(), 0.0f);
    {
        auto held = tree_.hold();
        held.fill(leaf(slot, 0, 0), shape_.steps * shape_.rows, 0.0f);
        if (!dying.empty()) held.assign(dying.data(), zeros.data(), static_cast<std::int64_t>(dying.size()));
        store(arrays_.generation + slot, arrays_.generation[slot] + 1);
    }
    // What is written into the slot from here on comes after the new generation.
    order_writes();
}

bool ReplaySlots::draw(Random& random, std::int64_t count, bool stratified, const ReturnRule& rule, const Drawn& out,
                       Look* look) {
    {
        // One look at the tree: the sum, the priorities and the generations belong together.
        auto held = tree_.hold();
        if (!held.draw(random, count, stratified, out.leaf, out.priority)) return false;
        look->total = static_cast<double>(held.total());
        look->minimum = tree_.has_minimum() ? static_cast<double>(held.minimum()) : 0.0;
        for (std::int64_t i = 0; i < count; ++i)
            out.generation[i] = load(arrays_.generation + out.leaf[i] / (shape_.steps * shape_.rows));
    }
    for (std::int64_t i = 0; i < count; ++i) walk(i, rule, out);
    return true;
}

// From the leaf's step forward, to where the bootstrap's value comes from.
void ReplaySlots::walk(std::int64_t index, const ReturnRule& rule, const Drawn& out) const noexcept {
    const std::int64_t first = out.leaf[index], row = first % shape_.rows;
    std::int64_t slot = first / (shape_.steps * shape_.rows), step = first / shape_.rows % shape_.steps;
    std::int64_t* witness = out.witness + 3 * index;
    witness[0] = slot | (out.generation[index] & generation_mask) << slot_bits;
    witness[1] = witness[2] = no_link;
    out.now[index] = cell(slot, step, row);
    if (needs_previous(slot, step, row)) witness[2] = load(arrays_.previous + slot);
    double sum = 0.0, discount = 1.0;
    for (std::int64_t k = 0; k < shape_.n_step; ++k) {
        if (step == shape_.steps) {
            const std::int64_t next = load(arrays_.next + slot);
            witness[1] = next;
            if (next == no_link) {
                // The leaf was live when it was drawn, so this slot is another one by now.
                witness[0] = slot | ((out.generation[index] - 1) & generation_mask) << slot_bits;
                break;
            }
            slot = slot_of(next);
            step = 0;
        }
        const std::int64_t at = leaf(slot, step, row);
        if (k > 0 && racing_load(arrays_.valid + at) == 0) break;
        const double scaled = rule.scale * static_cast<double>(racing_load(arrays_.reward + at));
        sum += discount * std::clamp(scaled, -rule.clip, rule.clip);
        discount *= rule.discount;
        ++step;
        if (racing_load(arrays_.terminated + at) != 0) {
            discount = 0.0;
            break;
        }
        if (racing_load(arrays_.truncated + at) != 0) break;
    }
    out.then[index] = cell(slot, step, row);
    out.reward[index] = static_cast<float>(sum);
    out.discount[index] = static_cast<float>(discount);
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
