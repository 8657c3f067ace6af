#include "core/snapshot.h"

#include <atomic>

#include "core/racing_copy.h"

namespace rollmill {

void snapshot_write(std::int64_t* header, std::byte* shared, std::span<const std::byte> source,
                    std::int64_t version) noexcept {
    const std::atomic_ref<std::int64_t> sequence(header[0]);
    const std::int64_t writing = sequence.load(std::memory_order_relaxed) | 1;
    sequence.store(writing, std::memory_order_relaxed);
    // Each store below is a release, so none of them can be seen before the odd sequence.
    racing_store(header + 1, version);
    racing_write(shared, source.data(), source.size());
    sequence.store(writing + 1, std::memory_order_release);
}

std::int64_t snapshot_read(std::int64_t* header, std::span<std::byte> out, std::byte* shared) noexcept {
    const std::atomic_ref<std::int64_t> sequence(header[0]);
    const std::int64_t before = sequence.load(std::memory_order_acquire);
    if ((before & 1) != 0) return torn;
    const std::int64_t version = racing_load(header + 1);
    racing_copy(out.data(), shared, out.size());
    // Each load above is an acquire, so this one cannot be older than any of them.
    return sequence.load(std::memory_order_relaxed) == before ? version : torn;
}

}  // namespace rollmill
