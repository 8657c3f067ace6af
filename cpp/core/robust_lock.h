// A mutex between processes that outlives whoever held it: when a holder dies, the next one is told and repairs.
//
// It lies in shared memory at any address. The kernel releases it when the holder's thread ends (robust list), so a wait
// ends when the holder dies, and by its timeout when the holder is merely stopped. Not recursive.
#pragma once

#include <pthread.h>

namespace rollmill {

class RobustLock {
   public:
    enum class Acquired {
        clean,
        abandoned,  // held now, but the last holder died with it: repair, then mark_consistent() before release()
        timed_out,  // not held
    };

    // Once, before anybody else looks. Throws std::system_error.
    void initialise();

    // Any thread of any process. Waits at most `seconds`.
    Acquired acquire(double seconds) noexcept;

    // The holder only: what the lock protects is whole again.
    void mark_consistent() noexcept { pthread_mutex_consistent(&mutex_); }

    // The holder only.
    void release() noexcept { pthread_mutex_unlock(&mutex_); }

   private:
    pthread_mutex_t mutex_;
};

}  // namespace rollmill
