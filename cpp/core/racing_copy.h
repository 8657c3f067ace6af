// Copies between memory that several threads or processes read and write at once. What arrives may be torn, which the
// caller detects by a generation or a sequence, but it is no data race.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace rollmill {

constexpr std::size_t line_bytes = 64;

// An acquire: what is read afterwards is no older. On x86 that is a plain load.
template <class T>
T racing_load(const T* at) noexcept {
    return std::atomic_ref<T>(*const_cast<T*>(at)).load(std::memory_order_acquire);
}

// A release: a thread that reads the word also sees what this thread wrote before. On x86 that is a plain store.
template <class T>
void racing_store(T* at, T value) noexcept {
    std::atomic_ref<T>(*at).store(value, std::memory_order_release);
}

// Whatever this thread writes afterwards, with whatever instruction, is seen after what it has written before.
inline void order_writes() noexcept {
#if defined(__SANITIZE_THREAD__)
    // ThreadSanitizer knows no fences; the writers of its tests use atomics.
#else
    std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

// Words where both ends allow it, bytes elsewhere. The compiler cannot make vectors of atomic words, but memory that
// is read at random is slower than either.
inline void racing_copy(std::byte* to, const std::byte* from, std::size_t size) noexcept {
    using Word = std::uint64_t;
    std::size_t at = 0;
    if (size == sizeof(std::uint32_t) && reinterpret_cast<std::uintptr_t>(from) % sizeof(std::uint32_t) == 0) {
        const std::uint32_t word = racing_load(reinterpret_cast<const std::uint32_t*>(from));
        std::memcpy(to, &word, sizeof(word));
        return;
    }
    while (at < size && reinterpret_cast<std::uintptr_t>(from + at) % sizeof(Word) != 0) {
        to[at] = racing_load(from + at);
        ++at;
    }
#pragma GCC unroll 8
    for (; at + sizeof(Word) <= size; at += sizeof(Word)) {
        const Word word = racing_load(reinterpret_cast<const Word*>(from + at));
        std::memcpy(to + at, &word, sizeof(Word));
    }
    for (; at < size; ++at) to[at] = racing_load(from + at);
}

// The same for writing: words if `to` is aligned to them, which it is if `size` is 8 or more; bytes for the rest.
inline void racing_write(std::byte* to, const std::byte* from, std::size_t size) noexcept {
    const auto store = [&]<class Word>(Word word, std::size_t at) {
        std::memcpy(&word, from + at, sizeof(word));
        racing_store(reinterpret_cast<Word*>(to + at), word);
    };
    std::size_t at = 0;
    if (size == sizeof(std::uint32_t)) return store(std::uint32_t{}, 0);
    for (; at + sizeof(std::uint64_t) <= size; at += sizeof(std::uint64_t)) store(std::uint64_t{}, at);
    for (; at < size; ++at) store(std::uint8_t{}, at);
}

// Calls `use(copy)` with a function that copies entries of `size` bytes; for the sizes of scalars and small vectors it
// is a few moves. Sources of whole words are aligned to them.
template <class Use>
void with_racing_copy(std::size_t size, Use&& use) {
    const auto words = []<class Word, std::size_t count>() {
        return [](std::byte* to, const std::byte* from) {
            for (std::size_t i = 0; i < count; ++i) {
                const Word word = racing_load(reinterpret_cast<const Word*>(from) + i);
                std::memcpy(to + i * sizeof(word), &word, sizeof(word));
            }
        };
    };
    switch (size) {
        case 1: return use(words.template operator()<std::uint8_t, 1>());
        case 4: return use(words.template operator()<std::uint32_t, 1>());
        case 8: return use(words.template operator()<std::uint64_t, 1>());
        case 16: return use(words.template operator()<std::uint64_t, 2>());
        case 32: return use(words.template operator()<std::uint64_t, 4>());
        default: return use([size](std::byte* to, const std::byte* from) { racing_copy(to, from, size); });
    }
}

}  // namespace rollmill
