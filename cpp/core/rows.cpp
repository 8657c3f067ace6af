#include "core/rows.h"

#include <algorithm>
#include <cstring>

namespace rollmill {
namespace {

// Rows ahead whose first lines are asked for: the hardware prefetcher cannot guess where the next row starts, but
// fetches the rest of a row.
constexpr std::int64_t rows_ahead = 4;
constexpr std::size_t line_bytes = 64;
constexpr std::size_t prefetched_bytes = 4 * line_bytes;

void prefetch(const std::byte* row, std::size_t row_bytes) {
    const std::size_t bytes = std::min(row_bytes, prefetched_bytes);
    for (std::size_t at = 0; at < bytes; at += line_bytes) __builtin_prefetch(row + at);
}

// The sizes of scalars are compiled as single moves; everything else is a memcpy.
template <class Copy>
void with_row_copy(std::size_t row_bytes, Copy&& copy) {
    switch (row_bytes) {
        case 1: return copy([](std::byte* to, const std::byte* from) { std::memcpy(to, from, 1); });
        case 4: return copy([](std::byte* to, const std::byte* from) { std::memcpy(to, from, 4); });
        case 8: return copy([](std::byte* to, const std::byte* from) { std::memcpy(to, from, 8); });
        default: return copy([row_bytes](std::byte* to, const std::byte* from) { std::memcpy(to, from, row_bytes); });
    }
}

}  // namespace

void gather_rows(std::byte* dst, const std::byte* src, std::span<const std::int64_t> index,
                 std::size_t row_bytes) noexcept {
    const std::int64_t count = std::ssize(index);
    with_row_copy(row_bytes, [&](auto&& copy_row) {
        for (std::int64_t m = 0; m < count; ++m) {
            if (m + rows_ahead < count)
                prefetch(src + static_cast<std::size_t>(index[m + rows_ahead]) * row_bytes, row_bytes);
            copy_row(dst + static_cast<std::size_t>(m) * row_bytes, src + static_cast<std::size_t>(index[m]) * row_bytes);
        }
    });
}

void gather_segments(std::byte* dst, const std::byte* src, std::span<const Segment> segments, std::int64_t steps,
                     std::int64_t num_columns, std::int64_t slot_steps, std::int64_t slot_rows,
                     std::size_t row_bytes) noexcept {
    const std::size_t dst_step = static_cast<std::size_t>(num_columns) * row_bytes;
    const std::size_t src_step = static_cast<std::size_t>(slot_rows) * row_bytes;
    for (const Segment& segment : segments) {
        const std::size_t bytes = static_cast<std::size_t>(segment.num_rows) * row_bytes;
        std::byte* to = dst + static_cast<std::size_t>(segment.column) * row_bytes;
        const std::byte* from = src + static_cast<std::size_t>(segment.slot) * static_cast<std::size_t>(slot_steps) * src_step +
                                static_cast<std::size_t>(segment.row) * row_bytes;
        for (std::int64_t t = 0; t < steps; ++t, to += dst_step, from += src_step) {
            prefetch(from + src_step * static_cast<std::size_t>(t + 1 < steps), bytes);
            std::memcpy(to, from, bytes);
        }
    }
}

}  // namespace rollmill
