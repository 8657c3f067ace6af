#include "core/message_lanes.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>

namespace rollmill {
namespace {

constexpr std::uint64_t tag_bits = 3;
constexpr std::uint64_t wide_tag = 0b001;
constexpr std::uint64_t bytes_tag = 0b011;
constexpr std::uint64_t tag_mask = 0b111;

std::size_t padded_words(std::size_t length) { return (length + 7) / 8; }

bool is_integer_word(std::int64_t word) { return (word & 1) == 0; }

// Words of the message whose first word this is.
std::uint64_t message_words(std::int64_t word) {
    const auto bits = static_cast<std::uint64_t>(word);
    if ((bits & 1) == 0) return 1;
    return 1 + ((bits & tag_mask) == wide_tag ? 1 : padded_words(bits >> tag_bits));
}

// Process id and start time (clock ticks since boot) of a living process; 0 if there is none or it is a zombie.
std::uint64_t identity(std::uint32_t pid) {
    char path[32];
    std::snprintf(path, sizeof path, "/proc/%u/stat", pid);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    char text[1024];
    const ssize_t length = read(fd, text, sizeof text);
    close(fd);
    if (length <= 0) return 0;
    std::string_view rest(text, static_cast<std::size_t>(length));
    const std::size_t name_end = rest.rfind(')');  // the name may hold spaces and parentheses
    if (name_end == std::string_view::npos) return 0;
    rest.remove_prefix(name_end + 2);
    if (rest.empty() || rest[0] == 'Z' || rest[0] == 'X') return 0;
    for (int field = 3; field < 22; ++field) {
        const std::size_t space = rest.find(' ');
        if (space == std::string_view::npos) return 0;
        rest.remove_prefix(space + 1);
    }
    std::uint64_t start = 0;
    std::from_chars(rest.data(), rest.data() + rest.size(), start);
    return static_cast<std::uint64_t>(pid) << 32 | (start & 0xffffffffu);
}

std::byte* ring_memory(void* memory, std::size_t header) { return static_cast<std::byte*>(memory) + header; }

}  // namespace

Message read_message(const std::int64_t* words) noexcept {
    const std::int64_t first = words[0];
    if (is_integer_word(first)) return {true, first >> 1, {}, 1};
    const auto bits = static_cast<std::uint64_t>(first);
    if ((bits & tag_mask) == wide_tag) return {true, words[1], {}, 2};
    const std::size_t length = bits >> tag_bits;
    return {false, 0, {reinterpret_cast<const char*>(words + 1), length}, 1 + padded_words(length)};
}

std::size_t MessageLanes::nbytes(std::int64_t num_lanes, std::int64_t capacity) {
    return sizeof(Header) + LaneRing::nbytes(num_lanes, capacity);
}

MessageLanes::MessageLanes(void* memory, std::size_t size, std::int64_t num_lanes, std::int64_t capacity, bool create)
    : header_(static_cast<Header*>(memory)),
      ring_(ring_memory(memory, sizeof(Header)), size < sizeof(Header) ? 0 : size - sizeof(Header), num_lanes, capacity,
            create) {
    if (!create) return;
    new (header_) Header{};
    header_->consumers.initialise();
}

std::int64_t MessageLanes::claim() {
    const std::uint64_t me = identity(static_cast<std::uint32_t>(getpid()));
    if (me == 0) throw std::runtime_error("this process is not in /proc; a queue needs /proc to tell who is alive");
    for (std::int64_t i = 0; i < ring_.num_lanes(); ++i) {
        std::uint64_t no_owner = 0;
        auto& owner = ring_.lane(i).owner;
        if (owner.load(std::memory_order_relaxed) == 0 &&
            owner.compare_exchange_strong(no_owner, me, std::memory_order_seq_cst))
            return i;
    }
    for (std::int64_t i = 0; i < ring_.num_lanes(); ++i) {
        auto& owner = ring_.lane(i).owner;
        std::uint64_t found = owner.load(std::memory_order_seq_cst);
        const bool alive = found != 0 && identity(static_cast<std::uint32_t>(found >> 32)) == found;
        if (!alive && owner.compare_exchange_strong(found, me, std::memory_order_seq_cst)) return i;
    }
    return -1;
}

void MessageLanes::unclaim(std::int64_t lane) noexcept {
    ring_.lane(lane).owner.store(0, std::memory_order_release);
}

std::int64_t MessageLanes::words_of(std::int64_t value) noexcept {
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(value) << 1) >> 1 == value ? 1 : 2;
}

std::int64_t MessageLanes::words_of(std::string_view bytes) noexcept {
    return static_cast<std::int64_t>(1 + padded_words(bytes.size()));
}

bool MessageLanes::put_wide(std::int64_t lane, std::int64_t value) noexcept {
    LaneRing::Lane& l = ring_.lane(lane);
    const std::uint64_t tail = l.tail.load(std::memory_order_relaxed);
    if (ring_.free_words(l, tail) < 2 && ring_.refresh_free_words(l, tail) < 2) return false;
    std::int64_t* data = ring_.words(lane);
    data[tail & ring_.mask()] = static_cast<std::int64_t>(wide_tag);
    data[(tail + 1) & ring_.mask()] = value;
    ring_.publish(l, tail + 2);
    return true;
}

bool MessageLanes::put(std::int64_t lane, std::string_view bytes) noexcept {
    const auto needed = static_cast<std::uint64_t>(words_of(bytes));
    LaneRing::Lane& l = ring_.lane(lane);
    const std::uint64_t tail = l.tail.load(std::memory_order_relaxed);
    if (ring_.free_words(l, tail) < needed && ring_.refresh_free_words(l, tail) < needed) return false;
    std::int64_t* data = ring_.words(lane);
    const std::uint64_t mask = ring_.mask();
    data[tail & mask] = static_cast<std::int64_t>(bytes.size() << tag_bits | bytes_tag);
    const std::uint64_t start = (tail + 1) & mask;
    const std::size_t first = std::min<std::size_t>(bytes.size(), (mask + 1 - start) * sizeof(std::int64_t));
    std::memcpy(data + start, bytes.data(), first);
    std::memcpy(data, bytes.data() + first, bytes.size() - first);
    ring_.publish(l, tail + needed);
    return true;
}

bool MessageLanes::is_full(std::int64_t lane) noexcept {
    LaneRing::Lane& l = ring_.lane(lane);
    return ring_.refresh_free_words(l, l.tail.load(std::memory_order_relaxed)) == 0;
}

void MessageLanes::take_locked(Sink& sink) {
    std::int64_t lane = ring_.turn();
    std::uint64_t words_taken = 0;
    for (std::int64_t visited = 0; visited < ring_.num_lanes() && sink.count < sink.limit; ++visited) {
        LaneRing::Lane& l = ring_.lane(lane);
        const std::uint64_t begin = l.head.load(std::memory_order_relaxed);
        const std::uint64_t end = l.tail.load(std::memory_order_acquire);
        const std::int64_t* data = ring_.words(lane);
        const std::uint64_t mask = ring_.mask();
        std::uint64_t head = begin;
        if (++lane == ring_.num_lanes()) lane = 0;
        if (begin == end) continue;
        if (sink.out != nullptr) {
            std::int64_t* out = sink.out;
            std::int64_t count = sink.count;
            for (; head != end && count < sink.limit; ++head) {
                const std::int64_t word = data[head & mask];
                if (is_integer_word(word)) [[likely]] {
                    out[count++] = word >> 1;
                } else if ((static_cast<std::uint64_t>(word) & tag_mask) == wide_tag) {
                    out[count++] = data[++head & mask];
                } else {
                    sink.met_bytes = true;
                    break;
                }
            }
            sink.count = count;
        } else {
            std::int64_t count = sink.count;
            for (; head != end && count < sink.limit; ++count) head += message_words(data[head & mask]);
            const std::size_t words_before = sink.words->size();
            try {
                sink.words->resize(words_before + (head - begin));
            } catch (const std::bad_alloc&) {
                if (sink.count == 0) throw;
                break;  // this lane's stay; what other lanes gave must reach the caller
            }
            const std::uint64_t first = std::min(head - begin, mask + 1 - (begin & mask));
            std::int64_t* to = sink.words->data() + words_before;
            std::memcpy(to, data + (begin & mask), first * sizeof(std::int64_t));
            std::memcpy(to + first, data, (head - begin - first) * sizeof(std::int64_t));
            sink.count = count;
        }
        if (head != begin) ring_.release(l, head);
        words_taken += head - begin;
    }
    ring_.end_turn(lane, words_taken);
}

void MessageLanes::take(Sink& sink) {
    const std::unique_lock lock(header_->consumers, std::try_to_lock);
    if (lock) take_locked(sink);
}

Wait MessageLanes::take_waiting(Sink& sink, double seconds) {
    const double deadline = monotonic_seconds() + seconds;
    // Other consumers' waits are looked at again soon, so that the caller can handle its signals.
    const std::chrono::duration<double> nap(std::clamp(seconds, 0.0, LaneRing::max_nap_seconds));
    const std::unique_lock lock(header_->consumers, nap);
    if (!lock) return monotonic_seconds() < deadline ? Wait::interrupted : Wait::timed_out;
    const Wait result = ring_.wait_for_words(1, deadline - monotonic_seconds());
    if (result == Wait::ready) take_locked(sink);
    return result;
}

std::int64_t MessageLanes::size() noexcept {
    const std::unique_lock lock(header_->consumers, std::try_to_lock);
    if (!lock) return ring_.size();
    std::int64_t messages = 0;
    for (std::int64_t i = 0; i < ring_.num_lanes(); ++i) {
        const std::int64_t* data = ring_.words(i);
        const std::uint64_t tail = ring_.lane(i).tail.load(std::memory_order_acquire);
        for (std::uint64_t head = ring_.lane(i).head.load(std::memory_order_relaxed); head != tail; ++messages)
            head += message_words(data[head & ring_.mask()]);
    }
    return messages;
}

}  // namespace rollmill
