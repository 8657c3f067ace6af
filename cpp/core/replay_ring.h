// A ring of transitions with a sum tree over it. Each operation is one call, for any thread of any process.
//
// A row of the ring is one record: all fields of a transition next to each other, on whole cache lines where that costs
// little, so that a draw of n transitions is n cache misses, not n for each field. Rows are given out in the order of
// the ring. A row's *ticket* is the number of rows given out before it: ticket % capacity is the row, and one
// comparison with the number given out so far decides whether a ticket's transition still exists. That number is the
// generation of all rows: a copy that ends before it changes is whole, a sample whose row it has passed is drawn again,
// and an update of such a row is skipped.
//
//     reserve (under the lock: priority 0, the number grows) -> write (no lock) -> commit (under the lock: maximum)
//
// This is PAL's lazy writing. A writer that reaches rows which are still being written waits for the robust lock of
// their writer. The lock of a dead writer is released; its rows keep priority 0 until they are given out again.
//
// With `linked`, rows are steps of environments, and each stores the row of the same environment's next step. A
// transition covers up to n_step of them and bootstraps from the observation of the following row, so that no
// observation is stored twice. At the end of an episode, the true last observation has a row of its own, which is never
// drawn. A row is live when the rows that it needs exist; they are younger, so they exist as long as the row itself.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "core/racing_copy.h"
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

// Where the fields lie in a record. With `linked` it begins with the row of the next step, or no_row, and has a byte of
// flags. Small fields come first, so that a walk reads the first line only; those of 8 bytes or more are aligned to 8.
struct RecordLayout {
    explicit RecordLayout(const RingShape& shape);

    std::vector<std::size_t> offsets;
    std::size_t flags_at = sizeof(std::int64_t);
    std::size_t stride = 0;
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
        const std::uint8_t* valid;      // null: all. Others are skipped, and steps that waited for them are never drawn.
    };

    // Priorities are copied while others change them: each row with a ticket below given_before had its priority at
    // some moment of the copy, and the rows that it needs have tickets below given_after.
    struct Copied {
        std::int64_t given_before, given_after;
        float maximum;
    };

    // The unfinished transitions of some environments; for the one thread that adds their steps.
    class Stream {
       public:
        Stream(std::int64_t num_envs, std::int64_t lookahead);
        std::int64_t num_envs() const noexcept { return static_cast<std::int64_t>(count_.size()); }
        void interrupt() noexcept;  // the next steps do not follow the last ones

       private:
        friend class ReplayRing;
        std::int64_t* waiting(std::int64_t env) noexcept { return waiting_.data() + env * (lookahead_ + 1); }

        std::int64_t lookahead_;
        std::vector<std::int64_t> newest_;   // ticket, or -1
        std::vector<std::int64_t> count_;    // of `waiting`
        std::vector<std::int64_t> waiting_;  // [num_envs, lookahead + 1]: tickets, the oldest first
        std::vector<std::int64_t> given_;    // [num_envs]: of the step that is being added
        std::vector<std::int64_t> ready_;    // rows of the steps that have become complete
    };

    // Bytes of memory. Throws std::invalid_argument.
    static std::size_t nbytes(const RingShape& shape);

    // One process, before the others attach. The memory must be zero and aligned to 64 bytes. Throws
    // std::invalid_argument.
    static ReplayRing initialise(void* memory, std::size_t size, const RingShape& shape);

    // A view of a ring that was initialised with the same shape. Throws std::invalid_argument.
    static ReplayRing attach(void* memory, std::size_t size, const RingShape& shape);

    const RingShape& shape() const noexcept { return shape_; }
    SumTree& tree() noexcept { return tree_; }
    std::size_t stride() const noexcept { return layout_.stride; }
    std::byte* records() const noexcept { return records_; }

    // Rows that must follow a step before it can be drawn, if its episode has not ended.
    std::int64_t lookahead() const noexcept;

    // Tickets given out so far. Any thread.
    std::int64_t given() const noexcept;

    // A different number for each call, for streams of random numbers. Any thread.
    std::uint64_t next_stream() noexcept;

    // --- Any thread of any process. Throws std::runtime_error after waiting a minute for a lock.

    // Transitions that can be drawn. O(1), but O(capacity) after a process died holding the lock.
    std::int64_t live();

    // Appends n <= capacity transitions, not `linked`, which are live at once. Returns the first one's ticket. O(n).
    std::int64_t add(std::span<const std::byte* const> columns, std::int64_t n);

    // Appends the next step of a stream's environments; `linked`. Returns the number of rows used. O(num_envs).
    std::int64_t add(Stream& stream, const Step& step);

    // Fills a batch with live transitions, drawn by priority and never torn; false, with nothing to be read, when there
    // is none.
    bool sample(Random& random, const DrawRule& rule, Batch& batch);

    // Sets valid priorities of the tickets whose transitions are still live, after the maximum has decayed, not below
    // `least`. Returns how many were skipped. O(n log capacity).
    std::int64_t update(std::span<const std::int64_t> tickets, std::span<const float> priorities, double decay,
                        float least);

    // Copies the priorities [capacity], in blocks; the lock is released between them.
    Copied copy_priorities(std::span<float> out);

    // Writes the memory, which is mapped from a file, to the disk, and then a flag in it, with the tree's lock
    // held. The next change first clears the flag on the disk, because pages are written back in any order. Rows that
    // are being written without the lock have priority 0. Throws std::system_error.
    void flush();
    bool is_flushed() const noexcept;

    // --- With exclusive use of the ring, to restore a file.

    // Releases locks whose holders ended in an earlier boot, of a ring that was flushed.
    void reset_locks();

    // Takes over priorities [capacity] of a ring that had given out `given` tickets. Tickets are raised by whole laps
    // above all that this ring has given out, so that older ones, and transitions that wait for more steps, become
    // invalid.
    void restore(std::int64_t given, std::span<const float> priorities, float maximum);

   private:
    static constexpr std::size_t max_writers = 64;
    static constexpr std::uint8_t terminated_flag = 1, truncated_flag = 2;
    static constexpr std::int64_t no_row = -1;
    static constexpr std::int64_t no_ticket = INT64_MAX, halted = INT64_MIN;

    // Locked from reserve to commit. Each is on its own cache line.
    struct alignas(64) Writer {
        RobustLock lock;
    };
    struct alignas(64) Header {
        std::atomic_ref<std::int64_t> ticket_of(std::size_t i) noexcept { return std::atomic_ref(writing[i]); }

        std::uint64_t magic;
        std::uint64_t digest;  // of the shape
        std::atomic<std::uint64_t> streams;
        // Changes with the tree's lock held.
        alignas(64) std::atomic<std::int64_t> given;
        std::int64_t live;
        std::uint64_t counted_at_repair;  // `live` holds for this many repairs of the tree
        std::uint64_t writers_used;
        std::int64_t restored_from;  // tickets below are older than the restore
        std::uint64_t flushed;  // the whole ring is on the disk
        alignas(64) std::int64_t writing[max_writers];  // first ticket that is being written, no_ticket or halted
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
    // The first writer other than `except` of tickets below this one; max_writers if there is none. With the tree's
    // lock held.
    std::size_t writer_below(std::int64_t ticket, std::size_t except = max_writers) const noexcept;

    std::byte* record(std::int64_t row) const noexcept {
        return records_ + static_cast<std::size_t>(row) * layout_.stride;
    }
    // The word or byte at an offset of a record.
    template <class Word>
    static Word load(const std::byte* record, std::size_t at = 0) noexcept {
        return racing_load(reinterpret_cast<const Word*>(record + at));
    }
    std::int64_t row_of(std::int64_t ticket) const noexcept { return ticket % shape_.capacity; }
    // The first ticket whose transition may still be there. With the tree's lock held.
    std::int64_t oldest() const noexcept { return std::max(given() - shape_.capacity, header_->restored_from); }
    // Calls `use(row, count)` for the rows of tickets first .. first + n - 1: twice if they wrap around.
    template <class Use>
    void for_rows(std::int64_t first, std::int64_t n, Use&& use) const {
        const std::int64_t row = row_of(first), until_end = std::min(n, shape_.capacity - row);
        use(row, until_end);
        if (until_end < n) use(0, n - until_end);
    }
    void count_again_after_repair(SumTree::Held& held) noexcept;
    // Must precede every change, with the lock held.
    void begin_change(SumTree::Held& held) {
        if (header_->flushed != 0) [[unlikely]] clear_flushed();
        count_again_after_repair(held);
    }
    void clear_flushed();
    void walk(Batch& batch) const noexcept;
    void prefetch_record(std::int64_t row) const noexcept;

    RingShape shape_;
    SumTree tree_;
    Header* header_;
    std::byte* records_;
    RecordLayout layout_;
    std::size_t prefetched_;  // bytes of a record
};

// A writer's place, held exclusively until this is destroyed.
class ReplayRing::WriterPlace {
   public:
    // Waits at most `seconds`. Rows that a dead holder was writing keep priority 0.
    WriterPlace(Header& header, std::size_t index, double seconds)
        : header_(header), index_(index), lock_(header.writers[index].lock, std::chrono::duration<double>(seconds)) {
        if (lock_) write_from(no_ticket);
    }
    WriterPlace(WriterPlace&&) noexcept = default;
    ~WriterPlace() {
        if (lock_) write_from(no_ticket);
    }

    explicit operator bool() const noexcept { return lock_.owns_lock(); }
    std::size_t index() const noexcept { return index_; }
    void write_from(std::int64_t first) noexcept { header_.ticket_of(index_).store(first, std::memory_order_release); }

   private:
    Header& header_;
    std::size_t index_;
    std::unique_lock<RobustLock> lock_;
};

}  // namespace rollmill
