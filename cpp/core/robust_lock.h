// A mutex between processes that survives the death of its holder, of which the next holder is notified.
//
// It lies in shared memory at any address. The kernel releases it when the holder's thread ends (robust list), so a
// wait ends when the holder dies, and by its timeout when the holder is merely stopped. Not recursive.
#pragma once

#include <pthread.h>

#include <cerrno>
#include <chrono>

namespace rollmill {

class RobustLock {
   public:
    enum class Acquired {
        clean,
        abandoned,  // held now, but the last holder died with it: repair, then mark_consistent() before unlock()
        timed_out,  // not held
    };

    // Once, before other threads use it. Throws std::system_error.
    void initialise();

    // Any thread of any process. Waits at most `seconds`.
    Acquired acquire(double seconds) noexcept;

    // The holder only: what the lock protects is whole again.
    void mark_consistent() noexcept { pthread_mutex_consistent(&mutex_); }

    // A TimedLockable, for std::unique_lock, where a dead holder leaves nothing to repair.
    bool try_lock() noexcept { return hold_consistent(as_acquired(pthread_mutex_trylock(&mutex_))); }
    bool try_lock_for(std::chrono::duration<double> time) noexcept { return hold_consistent(acquire(time.count())); }
    void unlock() noexcept { pthread_mutex_unlock(&mutex_); }

   private:
    static Acquired as_acquired(int error) noexcept {
        return error == 0 ? Acquired::clean : error == EOWNERDEAD ? Acquired::abandoned : Acquired::timed_out;
    }
    bool hold_consistent(Acquired acquired) noexcept {
        if (acquired == Acquired::abandoned) mark_consistent();
        return acquired != Acquired::timed_out;
    }

    pthread_mutex_t mutex_;
};

}  // namespace rollmill
