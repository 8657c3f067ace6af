// Copies of whole rows between arrays: how batches are built out of slots.
//
// No function here allocates, locks or throws; the caller has checked every index. Sources may be written concurrently
// only in rows that are not read. O(bytes copied).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace rollmill {

// dst[m] = src[index[m]] for every m; rows of `row_bytes` bytes.
void gather_rows(std::byte* dst, const std::byte* src, std::span<const std::int64_t> index,
                 std::size_t row_bytes) noexcept;

// `num_rows` consecutive rows of one slot, and the column of the batch where they go.
struct Segment {
    std::int64_t slot;
    std::int64_t row;
    std::int64_t num_rows;
    std::int64_t column;
};
static_assert(sizeof(Segment) == 4 * sizeof(std::int64_t));

// For arrays dst [>= steps, num_columns, row_bytes] and src [slots, slot_steps >= steps, slot_rows, row_bytes]:
// dst[t, column + i] = src[slot, t, row + i] for every segment, i < num_rows and t < steps.
void gather_segments(std::byte* dst, const std::byte* src, std::span<const Segment> segments, std::int64_t steps,
                     std::int64_t num_columns, std::int64_t slot_steps, std::int64_t slot_rows,
                     std::size_t row_bytes) noexcept;

}  // namespace rollmill
