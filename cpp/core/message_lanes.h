// MessageLanes: a LaneRing whose lanes carry messages (64-bit integers and byte strings), find their own producers, and
// serve several consumers. The core of rollmill.ring.Queue.
//
// A message is one word or more of its lane, published whole by one store to the lane's tail:
//
//     v << 1                     an integer of 63 bits
//     0b001, v                   any other 64-bit integer
//     length << 3 | 0b011, ...   `length` bytes, padded to whole words
//
// A lane belongs to the process (and object) that claimed it at its first put. The owner is recorded as process id and
// start time, so a lane whose owner is dead can be claimed again when none is free; what the dead producer had put is
// still delivered.
//
// Consumers exclude each other with a robust mutex: the kernel unlocks it when its holder is killed. All that it guards
// is the lanes' heads, each moved by one store over whole messages, so there is nothing to repair.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "core/lane_ring.h"
#include "core/robust_lock.h"

namespace rollmill {

// One message among the words that `take` delivered.
struct Message {
    bool is_integer;
    std::int64_t integer;
    std::string_view bytes;  // points into the words
    std::size_t num_words;
};

// Reads the message at the start of `words`.
Message read_message(const std::int64_t* words) noexcept;

class MessageLanes {
   public:
    static std::size_t nbytes(std::int64_t num_lanes, std::int64_t capacity);

    // As LaneRing's.
    MessageLanes(void* memory, std::size_t size, std::int64_t num_lanes, std::int64_t capacity, bool create);

    std::int64_t capacity() const noexcept { return ring_.capacity(); }

    // --- Producer. One thread at a time for each lane (Python's GIL sees to that).

    // A lane for this process: a free one, else one whose owner is dead; -1 when there is none. O(num_lanes), reads
    // /proc.
    std::int64_t claim();
    // Gives a lane back that this process claimed.
    void unclaim(std::int64_t lane) noexcept;

    bool put(std::int64_t lane, std::int64_t value) noexcept {
        const auto shifted = static_cast<std::int64_t>(static_cast<std::uint64_t>(value) << 1);
        if (shifted >> 1 == value) [[likely]] return ring_.put(lane, shifted);
        return put_wide(lane, value);
    }
    bool put(std::int64_t lane, std::string_view bytes) noexcept;
    static std::int64_t words_of(std::int64_t value) noexcept;
    static std::int64_t words_of(std::string_view bytes) noexcept;

    Wait wait_for_space(std::int64_t lane, std::int64_t words, double seconds) noexcept {
        return ring_.wait_for_space(lane, words, seconds);
    }
    // Whether the lane holds as much as it can.
    bool is_full(std::int64_t lane) noexcept;

    // --- Consumers. Any thread of any process.

    // Where taken messages go: `out` for integers only, else appended to `words` (see read_message).
    struct Sink {
        std::int64_t* out = nullptr;
        std::vector<std::int64_t>* words = nullptr;
        std::int64_t limit = 0;        // messages
        std::int64_t count = 0;        // messages taken
        bool met_bytes = false;        // a byte string was next, which `out` cannot take; it stays
    };

    // Takes the messages that have arrived, up to the limit; none while another consumer is taking.
    void take(Sink& sink);

    // Waits for a message, then takes those that have arrived. Also returns `interrupted` after waiting for another
    // consumer for a while, so that the caller can handle its signals and call again.
    Wait take_waiting(Sink& sink, double seconds);

    // Messages put and not yet taken; while another consumer is taking, the words instead (the same, for integers).
    std::int64_t size() noexcept;
    bool empty() const noexcept { return ring_.size() == 0; }

   private:
    struct alignas(LaneRing::alignment) Header {
        RobustLock consumers;
    };

    bool put_wide(std::int64_t lane, std::int64_t value) noexcept;
    void take_locked(Sink& sink);

    Header* header_;
    LaneRing ring_;
};

}  // namespace rollmill
