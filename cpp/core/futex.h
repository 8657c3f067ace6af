// Futex calls on words in shared memory, and the clock their timeouts use.
//
// The calls are the shared kind (no FUTEX_PRIVATE_FLAG): the word may lie at different addresses in different processes.
#pragma once

#include <atomic>
#include <cstdint>

namespace rollmill {

static_assert(std::atomic<std::uint32_t>::is_always_lock_free);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(sizeof(std::atomic<std::uint32_t>) == 4, "a futex is exactly 4 bytes");

using FutexWord = std::atomic<std::uint32_t>;

// Seconds of CLOCK_MONOTONIC.
double monotonic_seconds() noexcept;

enum class FutexResult { woken, timed_out, interrupted };

// Sleeps while `word` holds `expected`, at most `seconds`. `woken` may be spurious; `interrupted` means that a signal
// handler ran (the caller may want to let Python look at it).
FutexResult futex_wait(FutexWord& word, std::uint32_t expected, double seconds) noexcept;

// Wakes every thread of every process that sleeps on `word`.
void futex_wake_all(FutexWord& word) noexcept;

// Tells the core that this is a spin loop.
inline void cpu_relax() noexcept {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield" ::: "memory");
#endif
}

}  // namespace rollmill
