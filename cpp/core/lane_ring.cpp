#include "core/lane_ring.h"

#include <sched.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>

#include "core/errors.h"

namespace rollmill {
namespace {

constexpr std::uint64_t magic = 0x52494e474c414e45;  // "RINGLANE"
constexpr std::uint32_t layout_version = 2;
constexpr std::int64_t max_lanes = std::int64_t{1} << 20;
constexpr std::int64_t max_capacity = std::int64_t{1} << 40;

// A few microseconds: less than a sleep and a wake-up cost, so that a value on its way is caught, and little enough to be
// harmless where processes outnumber cores.
constexpr int spin_rounds = 40;
// In dense traffic (this many words since the last sleep) the consumer gives its core away before it sleeps: values then
// gather, and the producers are spared a system call for every few of them.
constexpr std::uint64_t dense_words = 256;
constexpr int dense_yields = 8;
// A producer that found its lane full is woken when half of it is free, so that it works in long stretches; it settles
// for what it needs when that takes longer than this.
constexpr double half_lane_seconds = 0.002;

std::uint64_t storage(std::int64_t capacity) { return std::bit_ceil(static_cast<std::uint64_t>(capacity)); }

}  // namespace

std::size_t LaneRing::nbytes(std::int64_t num_lanes, std::int64_t capacity) {
    if (num_lanes < 1 || num_lanes > max_lanes)
        raise<std::invalid_argument>("num_lanes is ", num_lanes, "; it must be 1 to ", max_lanes);
    if (capacity < 1 || capacity > max_capacity)
        raise<std::invalid_argument>("capacity is ", capacity, "; it must be 1 to ", max_capacity, " values a lane");
    const auto lanes = static_cast<std::size_t>(num_lanes);
    return sizeof(Header) + lanes * (sizeof(Lane) + storage(capacity) * sizeof(std::int64_t));
}

LaneRing::LaneRing(void* memory, std::size_t size, std::int64_t num_lanes, std::int64_t capacity, bool create) {
    const std::size_t needed = nbytes(num_lanes, capacity);
    if (size < needed)
        raise<std::invalid_argument>("the memory has ", size, " bytes; ", num_lanes, " lanes of ", capacity,
                                     " values need ", needed, " (see nbytes)");
    if (reinterpret_cast<std::uintptr_t>(memory) % alignment != 0)
        raise<std::invalid_argument>("the memory must start at a multiple of ", alignment, " bytes; an mmap does");
    auto* bytes = static_cast<std::byte*>(memory);
    header_ = reinterpret_cast<Header*>(bytes);
    lanes_ = reinterpret_cast<Lane*>(bytes + sizeof(Header));
    data_ = reinterpret_cast<std::int64_t*>(bytes + sizeof(Header) + static_cast<std::size_t>(num_lanes) * sizeof(Lane));
    num_lanes_ = num_lanes;
    capacity_ = static_cast<std::uint64_t>(capacity);
    mask_ = storage(capacity) - 1;
    if (create) {
        new (header_) Header{};
        for (std::int64_t i = 0; i < num_lanes; ++i) new (&lanes_[i]) Lane{};
        header_->num_lanes = static_cast<std::uint32_t>(num_lanes);
        header_->capacity = capacity_;
        header_->version = layout_version;
        header_->magic = magic;
        return;
    }
    if (header_->magic != magic)
        throw std::invalid_argument("there is no ring in this memory; attach only after it was created with create=True");
    if (header_->version != layout_version)
        raise<std::invalid_argument>("the ring has layout version ", header_->version, ", this is version ",
                                     layout_version, "; all processes must run the same Rollmill");
    if (header_->num_lanes != static_cast<std::uint32_t>(num_lanes) || header_->capacity != capacity_)
        raise<std::invalid_argument>("the ring was created with ", header_->num_lanes, " lanes of ", header_->capacity,
                                     " values, not ", num_lanes, " of ", capacity);
}

Wait LaneRing::wait_for_space(std::int64_t lane, std::int64_t wanted, double seconds) noexcept {
    Lane& l = lanes_[lane];
    const auto needed = static_cast<std::uint64_t>(wanted);
    const auto has_space = [&] {
        const std::uint64_t used =
            l.tail.load(std::memory_order_relaxed) - l.head.load(std::memory_order_seq_cst);
        return capacity_ - used >= needed;
    };
    const double start = monotonic_seconds();
    const double deadline = start + seconds;
    for (;;) {
        if (has_space()) return Wait::ready;
        const double now = monotonic_seconds();
        if (now >= deadline) return Wait::timed_out;
        const bool patient = now - start < half_lane_seconds;
        const std::uint64_t wish = patient ? std::max(needed, capacity_ / 2) : needed;
        const std::uint32_t bell = l.space_bell.load(std::memory_order_seq_cst);
        l.space_wanted.store(static_cast<std::uint32_t>(std::min<std::uint64_t>(wish, UINT32_MAX)),
                             std::memory_order_seq_cst);
        if (has_space()) return Wait::ready;  // the wish stays: one needless wake-up
        const double nap = std::min(deadline - now, patient ? half_lane_seconds : max_nap_seconds);
        if (futex_wait(l.space_bell, bell, nap) == FutexResult::interrupted) return Wait::interrupted;
    }
}

void LaneRing::release(Lane& l, std::uint64_t head) noexcept {
    l.head.store(head, std::memory_order_seq_cst);
    const std::uint32_t wanted = l.space_wanted.load(std::memory_order_seq_cst);
    if (wanted == 0) [[likely]] return;
    if (capacity_ - (l.tail.load(std::memory_order_seq_cst) - head) < wanted) return;
    l.space_wanted.store(0, std::memory_order_seq_cst);
    l.space_bell.fetch_add(1, std::memory_order_seq_cst);
    futex_wake_all(l.space_bell);
}

std::int64_t LaneRing::take(std::span<std::int64_t> out) noexcept {
    const std::uint64_t wanted = out.size();
    std::uint64_t taken = 0;
    std::int64_t lane = turn();
    for (std::int64_t visited = 0; visited < num_lanes_ && taken < wanted; ++visited) {
        Lane& l = lanes_[lane];
        const std::uint64_t head = l.head.load(std::memory_order_relaxed);
        const std::uint64_t n = std::min(l.tail.load(std::memory_order_acquire) - head, wanted - taken);
        if (n > 0) {
            const std::int64_t* data = words(lane);
            const std::uint64_t first = std::min(n, mask_ + 1 - (head & mask_));
            std::memcpy(out.data() + taken, data + (head & mask_), first * sizeof(std::int64_t));
            std::memcpy(out.data() + taken + first, data, (n - first) * sizeof(std::int64_t));
            release(l, head + n);
            taken += n;
        }
        if (++lane == num_lanes_) lane = 0;
    }
    end_turn(lane, taken);
    return static_cast<std::int64_t>(taken);
}

bool LaneRing::has_words(std::int64_t min_words) const noexcept {
    std::int64_t found = 0;
    for (std::int64_t i = 0; i < num_lanes_; ++i) {
        const std::uint64_t head = lanes_[i].head.load(std::memory_order_relaxed);
        found += static_cast<std::int64_t>(lanes_[i].tail.load(std::memory_order_seq_cst) - head);
        if (found >= min_words) return true;
    }
    return false;
}

bool LaneRing::take_wake() noexcept {
    const std::uint32_t wakes = header_->wakes.load(std::memory_order_seq_cst);
    if (wakes == header_->wakes_seen) return false;
    header_->wakes_seen = wakes;
    return true;
}

Wait LaneRing::wait_for_words(std::int64_t min_words, double seconds) noexcept {
    if (has_words(min_words)) return Wait::ready;
    if (take_wake()) return Wait::woken;
    if (seconds <= 0) return Wait::timed_out;
    const double deadline = monotonic_seconds() + seconds;
    for (int round = 0; round < spin_rounds; ++round) {
        cpu_relax();
        if (has_words(min_words)) return Wait::ready;
    }
    if (header_->taken >= dense_words) {
        for (int round = 0; round < dense_yields; ++round) {
            sched_yield();
            if (has_words(min_words)) return Wait::ready;
        }
    }
    header_->taken = 0;
    for (;;) {
        const std::uint32_t bell = header_->bell.load(std::memory_order_seq_cst);
        if (++header_->sleeps == 0) header_->sleeps = 1;
        header_->words_wanted.store(min_words, std::memory_order_seq_cst);
        header_->sleeper.store(header_->sleeps, std::memory_order_seq_cst);
        Wait result = Wait::timed_out;
        if (has_words(min_words)) {
            result = Wait::ready;
        } else if (take_wake()) {
            result = Wait::woken;
        } else {
            const double left = deadline - monotonic_seconds();
            if (left > 0) {
                const FutexResult slept = futex_wait(header_->bell, bell, std::min(left, max_nap_seconds));
                if (slept != FutexResult::interrupted) continue;
                result = Wait::interrupted;
            }
        }
        header_->sleeper.store(0, std::memory_order_seq_cst);
        return result;
    }
}

void LaneRing::ring() noexcept {
    // The announcement goes last, and only if it is still the one that was seen: killed before, this producer leaves it
    // standing for the others; delayed until the consumer sleeps again, it leaves the new one alone.
    std::uint32_t sleeper = header_->sleeper.load(std::memory_order_seq_cst);
    if (sleeper == 0) return;
    const std::int64_t wanted = header_->words_wanted.load(std::memory_order_seq_cst);
    if (wanted > 1 && !has_words(wanted)) return;  // the announcement stands
    header_->bell.fetch_add(1, std::memory_order_seq_cst);
    futex_wake_all(header_->bell);
    header_->sleeper.compare_exchange_strong(sleeper, 0, std::memory_order_seq_cst);
}

void LaneRing::wake() noexcept {
    header_->wakes.fetch_add(1, std::memory_order_seq_cst);
    header_->bell.fetch_add(1, std::memory_order_seq_cst);
    futex_wake_all(header_->bell);
}

std::int64_t LaneRing::size() const noexcept {
    std::int64_t total = 0;
    for (std::int64_t i = 0; i < num_lanes_; ++i) {
        // head first: the tail only grows meanwhile, so a lane never counts negative
        const std::uint64_t head = lanes_[i].head.load(std::memory_order_acquire);
        total += static_cast<std::int64_t>(lanes_[i].tail.load(std::memory_order_acquire) - head);
    }
    return total;
}

}  // namespace rollmill
