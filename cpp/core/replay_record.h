// A transition's record in a replay ring: the offsets of its fields, and how they are written and read while other
// threads may do the same. A read may be torn, which the caller detects by the tickets given out, but it is no data
// race.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "core/racing_copy.h"

namespace rollmill {

struct RingShape;

constexpr std::int64_t no_row = -1;

// With `linked` a record begins with the row of the next step, or no_row, and has a byte of flags.
constexpr std::uint8_t terminated_flag = 1, truncated_flag = 2;

constexpr std::size_t rounded_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

// Small fields first, so that a walk reads the first line only.
struct RecordLayout {
    std::vector<std::size_t> offsets;
    std::size_t flags_at = sizeof(std::int64_t);
    std::size_t stride = 0;

    explicit RecordLayout(const RingShape& shape);
};

// Stores release and loads acquire, which costs nothing on x86: a thread that reads a word which was written after rows
// were given out also sees, if it looks afterwards, that they were.
template <class Word>
void store_at(std::byte* to, Word word) noexcept {
    std::atomic_ref<Word>(*reinterpret_cast<Word*>(to)).store(word, std::memory_order_release);
}

template <class Word>
Word load_from(const std::byte* from) noexcept {
    return racing_load(reinterpret_cast<const Word*>(from));
}

// Fields of 8 bytes and more begin at a multiple of 8.
inline void store_field(std::byte* to, const std::byte* from, std::size_t size) noexcept {
    const auto store_word = [&]<class Word>(Word word, std::size_t at) {
        std::memcpy(&word, from + at, sizeof(word));
        store_at(to + at, word);
    };
    std::size_t at = 0;
    if (size == 4) return store_word(std::uint32_t{}, 0);
    if (size >= 8)
        for (; at + 8 <= size; at += 8) store_word(std::uint64_t{}, at);
    for (; at < size; ++at) store_word(std::uint8_t{}, at);
}

}  // namespace rollmill
