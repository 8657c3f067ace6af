#include "core/snapshot.h"

#include <atomic>
#include <cstring>

namespace rollmill {
namespace {

using Word = std::uint64_t;

}  // namespace

void snapshot_write(std::int64_t* header, std::byte* shared, std::span<const std::byte> source,
                    std::int64_t version) noexcept {
    const std::atomic_ref<std::int64_t> sequence(header[0]);
    const std::int64_t writing = sequence.load(std::memory_order_relaxed) | 1;
    sequence.store(writing, std::memory_order_relaxed);
    // Each store below is a release, so none of them can be seen before the odd sequence.
    std::atomic_ref<std::int64_t>(header[1]).store(version, std::memory_order_release);
    const std::size_t words = source.size() / sizeof(Word);
    auto* to = reinterpret_cast<Word*>(shared);
    for (std::size_t i = 0; i < words; ++i) {
        Word word;
        std::memcpy(&word, &source[i * sizeof(Word)], sizeof(Word));
        std::atomic_ref<Word>(to[i]).store(word, std::memory_order_release);
    }
    for (std::size_t i = words * sizeof(Word); i < source.size(); ++i)
        std::atomic_ref<std::byte>(shared[i]).store(source[i], std::memory_order_release);
    sequence.store(writing + 1, std::memory_order_release);
}

std::int64_t snapshot_read(std::int64_t* header, std::span<std::byte> out, std::byte* shared) noexcept {
    const std::atomic_ref<std::int64_t> sequence(header[0]);
    const std::int64_t before = sequence.load(std::memory_order_acquire);
    if ((before & 1) != 0) return torn;
    const std::int64_t version = std::atomic_ref<std::int64_t>(header[1]).load(std::memory_order_acquire);
    const std::size_t words = out.size() / sizeof(Word);
    auto* from = reinterpret_cast<Word*>(shared);
    for (std::size_t i = 0; i < words; ++i) {
        const Word word = std::atomic_ref<Word>(from[i]).load(std::memory_order_acquire);
        std::memcpy(&out[i * sizeof(Word)], &word, sizeof(Word));
    }
    for (std::size_t i = words * sizeof(Word); i < out.size(); ++i)
        out[i] = std::atomic_ref<std::byte>(shared[i]).load(std::memory_order_acquire);
    // Each load above is an acquire, so this one cannot be older than any of them.
    return sequence.load(std::memory_order_relaxed) == before ? version : torn;
}

}  // namespace rollmill
