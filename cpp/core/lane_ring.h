// LaneRing: many producers, one consumer, 64-bit integers, in memory shared between processes.
//
// Each producer owns a *lane*, a bounded single-producer single-consumer ring; one doorbell wakes the consumer. All
// state lies in memory that the caller gives, as offsets: each process may map it elsewhere, and a LaneRing object is
// only a view that can be copied and survives a fork.
//
// There are no locks. A value becomes visible by one store to its lane's tail, so a producer that is killed at any
// instruction has either put its value or not, and no other producer can notice.
//
// Sleeping follows Dekker's pattern: a thread that goes to sleep announces it and looks once more, a thread that
// changes something announces the change and then looks for sleepers; all four are sequentially consistent operations
// (and no fences, which ThreadSanitizer does not understand), so one of the two always sees the other. What remains is
// a producer killed between its put and its ring: its own last value is then found when the consumer's nap ends
// (`max_nap_seconds`), and other producers ring as if nothing had happened, because the consumer's announcement is
// withdrawn only after the ring.
//
// A consumer that waits for several words sleeps until they have arrived: the producer whose store to a tail is the
// last sees all of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/futex.h"

namespace rollmill {

// What ended a wait.
enum class Wait { ready, timed_out, interrupted, woken };

class LaneRing {
   public:
    static constexpr std::size_t alignment = 64;
    static constexpr double max_nap_seconds = 0.1;

    struct alignas(alignment) Spacer {
        std::byte unused[alignment];
    };

    struct alignas(alignment) Lane {
        // Written by the producer.
        std::atomic<std::uint64_t> tail;   // words ever put
        std::uint64_t head_seen;           // the producer's last look at head: saves it the consumer's cache line
        std::atomic<std::uint64_t> owner;  // for MessageLanes; 0: none
        // Written by the consumer. A line is left free between the two, and after them: the adjacent-line prefetcher
        // would tie them together.
        Spacer spacer_0;
        alignas(alignment) std::atomic<std::uint64_t> head;  // words ever taken
        FutexWord space_wanted;                              // free words a sleeping producer waits for; 0: none sleeps
        FutexWord space_bell;
        Spacer spacer_1;
    };

    // Bytes for `num_lanes` lanes that hold `capacity` words each. Throws std::invalid_argument unless both are
    // positive (and at most 2^20 lanes, 2^40 words).
    static std::size_t nbytes(std::int64_t num_lanes, std::int64_t capacity);

    LaneRing() = default;

    // `create` writes a fresh, empty ring; otherwise the ring found there must have the same geometry. Throws
    // std::invalid_argument when the memory is too small, misaligned, or holds something else.
    LaneRing(void* memory, std::size_t size, std::int64_t num_lanes, std::int64_t capacity, bool create);

    std::int64_t num_lanes() const noexcept { return num_lanes_; }
    std::int64_t capacity() const noexcept { return static_cast<std::int64_t>(capacity_); }

    // --- One thread at a time for each lane (its producer). O(1), never block, make a system call only to ring.

    bool put(std::int64_t lane, std::int64_t value) noexcept {
        Lane& l = lanes_[lane];
        const std::uint64_t tail = l.tail.load(std::memory_order_relaxed);
        if (free_words(l, tail) == 0) return false;
        words(lane)[tail & mask_] = value;
        publish(l, tail + 1);
        return true;
    }

    // Sleeps until `lane` has `wanted` (1..capacity) free words.
    Wait wait_for_space(std::int64_t lane, std::int64_t wanted, double seconds) noexcept;

    // --- One thread at a time for the whole ring (the consumer).

    // Takes as many values as `out` holds at most, each lane's in its order, the lanes in turn; returns how many.
    // O(num_lanes + values taken).
    std::int64_t take(std::span<std::int64_t> out) noexcept;

    // Sleeps until `min_words` words are there or wake() has been called since the last wait that it ended.
    Wait wait_for_words(std::int64_t min_words, double seconds) noexcept;

    // --- Any thread of any process.

    // Ends the consumer's present wait, or its next one.
    void wake() noexcept;

    // Words put and not yet taken (a moment's view).
    std::int64_t size() const noexcept;

    // --- For MessageLanes: the same lanes with messages of several words.

    Lane& lane(std::int64_t index) noexcept { return lanes_[index]; }
    const Lane& lane(std::int64_t index) const noexcept { return lanes_[index]; }
    std::int64_t* words(std::int64_t index) noexcept { return data_ + static_cast<std::size_t>(index) * (mask_ + 1); }
    std::uint64_t mask() const noexcept { return mask_; }

    // Free words of the lane, for its producer.
    std::uint64_t free_words(Lane& l, std::uint64_t tail) noexcept {
        std::uint64_t free = capacity_ - (tail - l.head_seen);
        if (free == 0) free = refresh_free_words(l, tail);
        return free;
    }
    std::uint64_t refresh_free_words(Lane& l, std::uint64_t tail) noexcept {
        l.head_seen = l.head.load(std::memory_order_acquire);
        return capacity_ - (tail - l.head_seen);
    }
    // Makes everything up to `tail` visible, and rings if the consumer sleeps.
    void publish(Lane& l, std::uint64_t tail) noexcept {
        l.tail.store(tail, std::memory_order_seq_cst);
        if (header_->sleeper.load(std::memory_order_seq_cst) != 0) [[unlikely]] ring();
    }
    // Gives the words before `head` back to the producer, and wakes it if it waits for them.
    void release(Lane& l, std::uint64_t head) noexcept;
    // Where the next round over the lanes starts (consumer).
    std::int64_t turn() const noexcept { return static_cast<std::int64_t>(header_->turn); }
    void end_turn(std::int64_t next_lane, std::uint64_t words_taken) noexcept {
        header_->turn = static_cast<std::uint64_t>(next_lane);
        header_->taken += words_taken;
    }

   private:
    struct alignas(alignment) Header {
        std::uint64_t magic;
        std::uint32_t version;
        std::uint32_t num_lanes;
        std::uint64_t capacity;
        Spacer spacer_0;
        // Rung by producers.
        alignas(alignment) FutexWord bell;
        FutexWord sleeper;  // number of the consumer's present sleep; 0: it is awake
        FutexWord wakes;    // calls of wake()
        std::atomic<std::int64_t> words_wanted;  // by the consumer, in its present sleep
        Spacer spacer_1;
        // Written by the consumer.
        alignas(alignment) std::uint64_t turn;
        std::uint32_t wakes_seen;
        std::uint32_t sleeps;
        std::uint64_t taken;  // words taken since the last sleep: whether the traffic is dense
        Spacer spacer_2;
    };

    void ring() noexcept;
    bool has_words(std::int64_t min_words) const noexcept;
    bool take_wake() noexcept;

    Header* header_ = nullptr;
    Lane* lanes_ = nullptr;
    std::int64_t* data_ = nullptr;
    std::int64_t num_lanes_ = 0;
    std::uint64_t capacity_ = 0;
    std::uint64_t mask_ = 0;  // the lane's storage is the next power of two, less one
};

}  // namespace rollmill
