// A transition's record in a replay ring: where its fields lie in it, and how they are written and read while others may
// be at it, too. What arrives may be torn, and the caller finds out by the tickets given out, but it is no data race.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "core/racing_copy.h"

namespace rollmill {

struct RingShape;

constexpr std::size_t line_bytes = 64;
constexpr std::int64_t no_row = -1;

// With `linked` a record begins with the row of the next step, or no_row, and has a byte of flags.
constexpr std::uint8_t terminated_flag = 1, truncated_flag = 2;

constexpr std::size_t rounded_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

// Small fields first, so that what a walk looks at is on the first line.
struct RecordLayout {
    std::vector<std::size_t> offsets;
    std::size_t flags_at = sizeof(std::int64_t);
    std::size_t stride = 0;

    explicit RecordLayout(const RingShape& shape);
};

// Stores release and loads acquire, which costs nothing on x86: who reads a word that was written after rows were given
// out also sees, if it looks after that, that they were.
template <class Word>
void store_word(std::byte* to, const std::byte* from) noexcept {
    Word word;
    std::memcpy(&word, from, sizeof(word));
    std::atomic_ref<Word>(*reinterpret_cast<Word*>(to)).store(word, std::memory_order_release);
}

template <class Word>
Word load_from(const std::byte* from) noexcept {
    return racing_load(reinterpret_cast<const Word*>(from));
}

template <class Word>
void load_word(std::byte* to, const std::byte* from) noexcept {
    const Word word = load_from<Word>(from);
    std::memcpy(to, &word, sizeof(word));
}

// Fields of 8 bytes and more begin at a multiple of 8.
inline void store_field(std::byte* to, const std::byte* from, std::size_t size) noexcept {
    std::size_t at = 0;
    if (size == 4) return store_word<std::uint32_t>(to, from);
    if (size >= 8)
        for (; at + 8 <= size; at += 8) store_word<std::uint64_t>(to + at, from + at);
    for (; at < size; ++at) store_word<std::uint8_t>(to + at, from + at);
}

// Calls `copy(load)` with a function that loads one field out of a record; of the sizes of scalars and small vectors it
// is a few moves.
template <class Copy>
void with_load(std::size_t bytes, Copy&& copy) {
    const auto words = [](auto count) {
        return [](std::byte* to, const std::byte* from) {
            for (std::size_t i = 0; i < decltype(count)::value; ++i) load_word<std::uint64_t>(to + 8 * i, from + 8 * i);
        };
    };
    switch (bytes) {
        case 1: return copy([](std::byte* to, const std::byte* from) { load_word<std::uint8_t>(to, from); });
        case 4: return copy([](std::byte* to, const std::byte* from) { load_word<std::uint32_t>(to, from); });
        case 8: return copy(words(std::integral_constant<std::size_t, 1>{}));
        case 16: return copy(words(std::integral_constant<std::size_t, 2>{}));
        case 32: return copy(words(std::integral_constant<std::size_t, 4>{}));
        default: return copy([bytes](std::byte* to, const std::byte* from) { racing_copy(to, from, bytes); });
    }
}

}  // namespace rollmill
