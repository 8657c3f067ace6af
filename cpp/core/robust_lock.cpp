#include "core/robust_lock.h"

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <system_error>

#include "core/futex.h"

namespace rollmill {
namespace {

// pthread_mutex_timedlock goes by the wall clock, which may be set back: no single wait is longer than this.
constexpr double slice_seconds = 0.1;

// A holder needs microseconds; a thread that sleeps instead may lose its core for milliseconds.
constexpr int spins = 256;

timespec wall_clock_after(double seconds) {
    timespec time{};
    clock_gettime(CLOCK_REALTIME, &time);
    time.tv_nsec += static_cast<long>(seconds * 1e9);
    time.tv_sec += time.tv_nsec / 1'000'000'000;
    time.tv_nsec %= 1'000'000'000;
    return time;
}

void check(int error, const char* what) {
    if (error != 0) throw std::system_error(error, std::generic_category(), what);
}

}  // namespace

void RobustLock::initialise() {
    pthread_mutexattr_t attributes;
    check(pthread_mutexattr_init(&attributes), "pthread_mutexattr_init");
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    const int error = pthread_mutex_init(&mutex_, &attributes);
    pthread_mutexattr_destroy(&attributes);
    check(error, "pthread_mutex_init");
}

RobustLock::Acquired RobustLock::acquire(double seconds) noexcept {
    int result = pthread_mutex_trylock(&mutex_);
    for (int spin = 0; result == EBUSY && spin < spins; ++spin) {
        cpu_relax();
        result = pthread_mutex_trylock(&mutex_);
    }
    if (result == EBUSY) {
        const double deadline = monotonic_seconds() + seconds;
        for (double left = seconds; left > 0; left = deadline - monotonic_seconds()) {
            const timespec until = wall_clock_after(std::min(left, slice_seconds));
            result = pthread_mutex_timedlock(&mutex_, &until);
            if (result != ETIMEDOUT) break;
        }
    }
    return as_acquired(result);
}

}  // namespace rollmill
