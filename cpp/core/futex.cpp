#include "core/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <ctime>

namespace rollmill {

double monotonic_seconds() noexcept {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

FutexResult futex_wait(FutexWord& word, std::uint32_t expected, double seconds) noexcept {
    if (seconds <= 0) return FutexResult::timed_out;
    seconds = std::min(seconds, 3600.0);  // time_t must hold it; callers wait in a loop
    timespec timeout{};
    timeout.tv_sec = static_cast<time_t>(seconds);
    timeout.tv_nsec = static_cast<long>((seconds - static_cast<double>(timeout.tv_sec)) * 1e9);
    const long rc = syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT, expected, &timeout, nullptr, 0);
    if (rc == 0 || errno == EAGAIN) return FutexResult::woken;
    return errno == EINTR ? FutexResult::interrupted : FutexResult::timed_out;
}

void futex_wake_all(FutexWord& word) noexcept {
    syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace rollmill
