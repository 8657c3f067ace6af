// A seqlock: one writer replaces a block of shared memory now and then, any number of readers copy it whole.
//
// Readers take no lock and leave no trace; a reader detects and reports that it overlapped a write. After H.-J. Boehm,
// "Can seqlocks get along with programming language memory models?" (MSPC 2012): the block is read and written as
// atomic words, with release stores and acquire loads in the place of fences. A writer killed in the middle leaves the
// sequence odd: every read fails until the next write is complete.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace rollmill {

// header[0]: sequence, odd during a write. header[1]: version of the block.
inline constexpr std::int64_t torn = -1;

// Replaces `shared` (8-byte aligned) by `source` and makes `version` its version. One writer at a time. O(size).
void snapshot_write(std::int64_t* header, std::byte* shared, std::span<const std::byte> source,
                    std::int64_t version) noexcept;

// Copies `shared` (8-byte aligned) to `out`; its version, or `torn` when a write overlapped (`out` then holds rubbish).
std::int64_t snapshot_read(std::int64_t* header, std::span<std::byte> out, std::byte* shared) noexcept;

}  // namespace rollmill
