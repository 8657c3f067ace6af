// A prioritised replay that stands alone: a ring of transitions, a sum tree over them, and everything that is done to them
// in one call each, by any thread of any process.
//
// A row of the ring is one record: all fields of a transition next to each other, on whole cache lines where that costs
// little, so that a draw of n transitions is n cache misses and not n times the number of fields. Rows are given out in
// the order of the ring, and a row's *ticket* is how many were given out before it: ticket % capacity is the row, and
// whether a ticket's transition is still there is one comparison with the number given out so far. That number is the
// generation of all rows at once: what was copied before it moved on is whole, what was drawn before it moved on is
// drawn anew, and what is updated after it moved on is left alone.
//
//     reserve (under the lock: priority 0, the number moves on) -> write (no lock) -> commit (under the lock: maximum)
//
// That is PAL's lazy writing. Whoever would write over rows that are still being written waits for their writer, who
// holds a robust lock of its own: one that died lets go, and its rows stay at priority 0 until they are given out again.
//
// With `linked` rows are steps of environments, and each knows the row of the same environment's next step. A transition
// goes over up to n_step of them and bootstraps from the observation of the row after, so that no observation is kept
// twice. Where an episode ends the true last observation has a row of its own, which is never drawn. A row is live when
// the rows that it needs are there; they are younger, so they are all still there as long as the row itself is.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "core/replay_draw.h"
#include "core/sum_tree.h"

namespace rollmill {

struct RingField {
    std::size_t bytes;   // of one row
    bool has_next;       // with `linked`: batches have it of the row that they bootstrap from, too
};

struct RingShape {
    std::int64_t capacity = 1;  // rows
    std::vector<RingField> fields;
    bool linked = false;
    int reward = -1;  // which field, float32; only with `linked`
    std::int64_t n_step = 1;
    double discount = 1.0;
    SumTree::Options tree;
};

class ReplayRing {
   public:
    static constexpr std::int64_t max_n_step = 1024;

    // Arrays of a batch's size; the last three only of linked rows.
    struct BatchArrays {
        std::span<std::int64_t> tickets;
        std::span<float> weights;
        std::span<float> reward;             // sum of discount^i r_i
        std::span<float> discount;           // discount^k; 0 where the episode terminated
        std::span<std::uint8_t> terminated;  // likewise 1
    };

    // For each field where its entries go, [size, bytes]; null where they are not wanted.
    using BatchColumns = std::span<std::byte* const>;

    // What `sample` fills, and its scratch. One thread at a time.
    class Batch : public DrawnBatch {
       public:
        Batch(const ReplayRing& ring, const BatchArrays& arrays, BatchColumns of_drawn, BatchColumns of_next);
        Batch(const Batch&) = delete;
        Batch& operator=(const Batch&) = delete;

       private:
        friend class ReplayRing;
        BatchArrays arrays_;
        std::vector<std::int64_t> rows_;
        std::vector<std::int64_t> then_;  // the rows that are bootstrapped from; no_row: read while it was overwritten
        std::vector<std::int64_t> going_;  // samples whose episodes go on
        std::vector<Return> returns_;
    };

    // One step of num_envs environments.
    struct Step {
        std::span<const std::byte* const> columns;       // [num_envs, bytes]
        std::span<const std::byte* const> next_columns;  // of fields that have a next; read where an episode ends
        const std::uint8_t* terminated;
        const std::uint8_t* truncated;  // null: none
        const std::uint8_t* valid;      // null: all. The others are left out, and what waited for them is never drawn.
    };

    // What priorities were copied from: not one moment, but what has a ticket below given_before had its priority at some
    // moment between, and the rows that it needs have tickets below given_after.
    struct Copied {
        std::int64_t given_before, given_after;
        float maximum;
    };

    // Where each of some environments stands: belongs to the one thread that adds their steps.
    class Stream {
       public:
        Stream(std::int64_t num_envs, std::int64_t lookahead);
        std::int64_t num_envs() const noexcept { return static_cast<std::int64_t>(count_.size()); }
        void forget() noexcept;  // what comes next follows nothing

       private:
        friend class ReplayRing;
        std::int64_t* waiting(std::int64_t env) noexcept { return waiting_.data() + env * (lookahead_ + 1); }

        std::int64_t lookahead_;
        std::vector<std::int64_t> newest_;   // ticket, or -1
        std::vector<std::int64_t> count_;    // of `waiting`
        std::vector<std::int64_t> waiting_;  // [num_envs, lookahead + 1]: tickets, the oldest first
        std::vector<std::int64_t> given_;    // [num_envs]: of the step that is being added
        std::vector<std::int64_t> ready_;    // rows of the steps that miss nothing any more
    };

    // Bytes of memory. Throws std::invalid_argument.
    static std::size_t nbytes(const RingShape& shape);

    // One process, before the others attach. Memory is to be zero where it begins and aligned to 64 bytes. Throws
    // std::invalid_argument.
    static ReplayRing initialise(void* memory, std::size_t size, const RingShape& shape);

    // A view of what is there, which must have been made of the same shape. Throws std::invalid_argument.
    static ReplayRing attach(void* memory, std::size_t size, const RingShape& shape);

    const RingShape& shape() const noexcept { return shape_; }
    SumTree& tree() noexcept { return tree_; }
    std::size_t stride() const noexcept { return stride_; }
    std::byte* records() const noexcept { return records_; }

    // Rows that a step must be followed by before it can be drawn, if its episode goes on.
    std::int64_t lookahead() const noexcept;

    // Tickets given out so far. Any thread.
    std::int64_t given() const noexcept;

    // A number of its own for each caller, for streams of random numbers. Any thread.
    std::uint64_t next_stream() noexcept;

    // --- All of these: any thread of any process; std::runtime_error when a lock is not to be had within a minute.

    // Transitions that can be drawn. O(1), but O(capacity) after a process died with the lock.
    std::int64_t live();

    // Appends n <= capacity transitions, not `linked`, which can be drawn from then on. Returns the first one's ticket.
    // O(n).
    std::int64_t add(std::span<const std::byte* const> columns, std::int64_t n);

    // Appends the next step of a stream's environments; `linked`. Returns how many rows that took. O(num_envs).
    std::int64_t add(Stream& stream, const Step& step);

    // Fills a batch with draws by priority; never torn, never of rows that are gone. False, and nothing is to be read, if
    // there is nothing to draw.
    bool sample(Random& random, const DrawRule& rule, Batch& batch);

    // New priorities, valid ones, for those of the tickets whose transitions are there; before, the maximum decays, not
    // below `least`. Returns how many were not there. O(n log capacity).
    std::int64_t update(std::span<const std::int64_t> tickets, std::span<const float> priorities, double decay,
                        float least);

    // Copies the priorities [capacity], in blocks between which others go on.
    Copied copy_priorities(std::span<float> out);

    // Brings the memory, which is mapped from a file, to the disk, and says so there; keeps others waiting for that. Whoever
    // changes something next first takes that back, on the disk too: pages reach it in any order. What is written without
    // the tree's lock has priority zero until then. Throws std::system_error.
    void flush();
    bool is_flushed() const noexcept;

    // --- Alone with the ring: what a file held.

    // Lets go of locks whose holders are of another boot, of a ring that was flushed last.
    void free_locks();

    // Says what the rows are worth [capacity] of a ring that had given out so many tickets. Their tickets are moved on by
    // whole laps, above all that this one has given out: those, and whoever still waits for steps to follow them, stand for
    // nothing any more.
    void restore(std::int64_t given, std::span<const float> priorities, float maximum);

   private:
    static constexpr std::size_t max_writers = 64;
    static constexpr std::int64_t nobody = INT64_MAX, halted = INT64_MIN;

    // On a line of its own each: a writer keeps it locked from reserve to commit.
    struct alignas(64) Writer {
        RobustLock lock;
    };
    struct alignas(64) Header {
        std::atomic_ref<std::int64_t> ticket_of(std::size_t writer) noexcept { return std::atomic_ref(writing[writer]); }

        std::uint64_t magic;
        std::uint64_t digest;  // of the shape
        std::atomic<std::uint64_t> streams;
        // Changes with the tree's lock held.
        alignas(64) std::atomic<std::int64_t> given;
        std::int64_t live;
        std::uint64_t counted_at_repair;  // `live` holds for this many repairs of the tree
        std::uint64_t writers_used;
        std::int64_t restored_from;  // tickets below are of before restore
        std::uint64_t flushed;  // all of it is on the disk
        alignas(64) std::int64_t writing[max_writers];  // first ticket of what is being written, nobody or halted
        Writer writers[max_writers];
    };
    class WriterPlace;
    class Writing;
    class Halt;
    class Source;

    ReplayRing(void* memory, const RingShape& shape, const SumTree& tree);
    static std::size_t tree_at() noexcept;

    // A free writer's place, or else the first one when it is free. Throws std::runtime_error after a minute.
    WriterPlace choose_writer();
    // The first writer other than `except` of tickets below this one; max_writers if there is none. With the tree's lock
    // held.
    std::size_t writer_below(std::int64_t ticket, std::size_t except = max_writers) const noexcept;

    std::byte* record(std::int64_t row) const noexcept {
        return records_ + static_cast<std::size_t>(row) * stride_;
    }
    std::int64_t row_of(std::int64_t ticket) const noexcept { return ticket % shape_.capacity; }
    // The first ticket whose transition may still be there. With the tree's lock held.
    std::int64_t oldest() const noexcept { return std::max(given() - shape_.capacity, header_->restored_from); }
    // Calls `use(row, count)` for the rows of tickets first .. first + n - 1: two runs where they go round the end.
    template <class Use>
    void for_rows(std::int64_t first, std::int64_t n, Use&& use) const {
        const std::int64_t row = row_of(first), until_end = std::min(n, shape_.capacity - row);
        use(row, until_end);
        if (until_end < n) use(0, n - until_end);
    }
    void count_again_after_repair(SumTree::Held& held) noexcept;
    // Before anything is changed with the lock held.
    void begin_change(SumTree::Held& held) {
        if (header_->flushed != 0) [[unlikely]] take_flush_back();
        count_again_after_repair(held);
    }
    void take_flush_back();
    void walk(Batch& batch) const noexcept;
    void prefetch_record(std::int64_t row) const noexcept;

    RingShape shape_;
    SumTree tree_;
    Header* header_ = nullptr;
    std::byte* records_ = nullptr;
    std::vector<std::size_t> offsets_;
    std::size_t flags_at_ = 0;
    std::size_t stride_ = 0;
    std::size_t prefetched_ = 0;  // bytes of a record
};

// A writer's place, while nobody else has it; released when this goes.
class ReplayRing::WriterPlace {
   public:
    // Waits so many seconds at most. What a dead holder was writing stays at priority 0.
    WriterPlace(Header& header, std::size_t index, double seconds)
        : header_(header), index_(index), lock_(header.writers[index].lock, std::chrono::duration<double>(seconds)) {
        if (lock_) write_from(nobody);
    }
    WriterPlace(WriterPlace&&) noexcept = default;
    ~WriterPlace() {
        if (lock_) write_from(nobody);
    }

    explicit operator bool() const noexcept { return lock_.owns_lock(); }
    std::size_t index() const noexcept { return index_; }
    void write_from(std::int64_t ticket) noexcept { header_.ticket_of(index_).store(ticket, std::memory_order_release); }

   private:
    Header& header_;
    std::size_t index_;
    std::unique_lock<RobustLock> lock_;
};

}  // namespace rollmill
