// SumTree: the priorities of a replay, drawn from in proportion, in memory shared between processes.
//
// A K-ary tree in an implicit array (PAL, section IV-C): the leaves are the priorities, every inner node is the sum of
// its K children, and the root is the total. Sibling groups lie on cache lines of their own. Unlike the paper's, no
// level is rounded up to a power of K: level i + 1 has ceil(n_i / K) nodes, padded with zeros to whole groups, and a
// million leaves take 4.27 MB. The leaves are authoritative: a change recomputes their ancestors level by level, so
// that nothing drifts, and a tree whose writer died is rebuilt from them.
//
// All state lies in memory that the caller gives, as offsets: each process may map it elsewhere, and a SumTree object
// is only a view that can be copied and survives a fork. One robust lock makes a sequence of operations one step for
// all others:
//
//     auto held = tree.hold();
//     if (held.draw(random, false, leaves, priorities)) total = held.total();   // of one snapshot
//
// The paper takes two nested locks so that a priority can be read while the inner levels change. Reading one here takes
// none: a leaf is one atomic float.
//
// Priorities are finite, 0 <= p <= largest_priority. A leaf of priority 0 is not live and never drawn. Callers check
// with `first_invalid_priority` before they acquire the lock; nothing is checked under it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/random.h"
#include "core/robust_lock.h"
#include "core/sum_tree_kernels.h"

namespace rollmill {

class SumTree {
   public:
    class Operations;
    class Held;

    static constexpr std::size_t alignment = 64;
    static constexpr int default_fanout = 16;
    static constexpr int max_fanout = 256;
    static constexpr std::int64_t max_capacity = std::int64_t{1} << 40;
    // So large a sum of so many stays below float32's largest.
    static constexpr float largest_priority = 0x1p64f;
    // Holders need microseconds (a whole level of 10M leaves: milliseconds). One that still holds the lock after this
    // long is stopped, not slow.
    static constexpr double max_wait_seconds = 60.0;

    struct Options {
        int fanout = default_fanout;  // 2, 4, 8, ... 256
        // Whether to keep the least positive priority too (over inner levels of its own: 1 / (K - 1) more memory), for
        // importance weights that are normalised by the whole replay.
        bool minimum = false;
    };

    // Bytes of memory. Throws std::invalid_argument.
    static std::size_t nbytes(std::int64_t capacity, Options options);

    // Writes a tree of zeros, with a maximum priority of 1; one process, before others attach. O(capacity). Throws
    // std::invalid_argument when the memory is too small or misaligned.
    static SumTree initialise(void* memory, std::size_t size, std::int64_t capacity, Options options);

    // A view of the tree that is there. O(1). Throws std::invalid_argument when there is none, or another version's.
    static SumTree attach(void* memory, std::size_t size);

    std::int64_t capacity() const noexcept { return capacity_; }
    int fanout() const noexcept { return 1 << fanout_bits_; }
    bool has_minimum() const noexcept { return minimums_[0] != nullptr; }

    // The lock, for the lifetime of the returned object; a tree left by a dead holder is rebuilt first (O(capacity)).
    // Any thread of any process; throws std::runtime_error after `seconds`. Not recursive.
    [[nodiscard]] Held hold(double seconds = max_wait_seconds);

    // Releases a lock whose holder ended in an earlier boot; with exclusive use of a consistent tree.
    void reset_lock() { header_->lock.initialise(); }

    // The same operations for a caller with exclusive use of the tree.
    Operations without_lock() noexcept;

    // One priority, without the lock, 0 <= leaf < capacity. O(1). Any thread of any process.
    float priority(std::int64_t leaf) const noexcept {
        return std::atomic_ref<float>(levels_[0][leaf]).load(std::memory_order_relaxed);
    }

    // Fetches a priority that is about to be changed.
    void prefetch(std::int64_t leaf) const noexcept { __builtin_prefetch(levels_[0] + leaf, 1); }

    // How often the tree of a dead holder was rebuilt. Any thread of any process.
    std::uint64_t repairs() const noexcept;

    // The most that this view may use; not while it is held. All compute the same bits.
    void use_instructions(Instructions most) noexcept { kernels_ = &sum_tree_kernels(most, fanout()); }

   private:
    static constexpr int max_levels = 42;  // 2^40 leaves in pairs

    struct alignas(alignment) Header {
        std::uint64_t magic;
        std::uint32_t version;
        std::uint32_t fanout;
        std::int64_t capacity;
        std::uint32_t minimum;
        // What changes, on a line of its own.
        alignas(alignment) RobustLock lock;
        std::atomic<float> maximum;
        std::atomic<std::uint64_t> repairs;
        // Nothing of the tree on the line that the adjacent-line prefetcher fetches with the lock's.
        alignas(alignment) std::byte spacer[alignment];
    };

    SumTree(void* memory, std::int64_t capacity, Options options) noexcept;

    Header* header_ = nullptr;
    const SumTreeKernels* kernels_ = nullptr;
    std::int64_t capacity_ = 0;
    int fanout_bits_ = 0;
    int num_levels_ = 0;  // with the leaves (level 0) and the root
    std::int64_t nodes_[max_levels] = {};
    float* levels_[max_levels] = {};
    float* minimums_[max_levels] = {};  // null unless kept; level 0 is the leaves' own
};

// What can be done to a tree: by one thread at a time.
class SumTree::Operations {
   public:
    // Sets the priorities of `leaves` (0 <= leaf < capacity; of equal ones the last stays), and raises the maximum to
    // the largest. O(n K log_K capacity).
    void assign(std::span<const std::int64_t> leaves, std::span<const float> priorities) noexcept;

    // Sets the priorities of all of them to this one.
    void assign(std::span<const std::int64_t> leaves, float priority) noexcept;

    // As `assign`, but skips what must not become live again: leaves whose entry in `generations` is not
    // current_generations[leaf / rows_per_generation] (they stand for something else since), and those whose priority
    // is 0 (something else is being written there). Returns how many it skipped.
    std::int64_t assign_if_alive(std::span<const std::int64_t> leaves, std::span<const float> priorities,
                                 std::span<const std::int64_t> generations, const std::int64_t* current_generations,
                                 std::int64_t rows_per_generation) noexcept;

    // Sets leaves first .. first + n - 1, and raises the maximum. O(n + K log_K capacity).
    void fill(std::int64_t first, std::int64_t n, float priority) noexcept;

    // Draws n leaves, each with probability p / total, and gives their priorities. Independently; or `stratified`: leaf
    // i from the i-th of n equal parts of the total (Schaul et al. 2016, appendix B.2.1), which are then sorted.
    // Returns false, and draws nothing, when the total is 0. O(n K log_K capacity).
    bool draw(Random& random, bool stratified, std::span<std::int64_t> leaves, std::span<float> priorities) noexcept;

    // Where the prefix masses residuals[i] >= 0 end; overwrites them. Only if total() > 0. What `draw` does with its
    // random numbers.
    void find(std::span<double> residuals, std::span<std::int64_t> leaves) noexcept;

    // The sum of all priorities, rounded to float32 at each level: within a few 1e-7 of it. O(1).
    float total() const noexcept;

    // The least priority > 0; 0 if there is none. Only with Options::minimum. O(1).
    float minimum() const noexcept;

    // The largest priority ever stored (at least 1 unless set), which new items get. O(1).
    float maximum() const noexcept;

    void set_maximum(float priority) noexcept;

    // Before each update, so that an outlier does not raise new priorities for ever; factor <= 1. Not below `least`.
    void decay_maximum(double factor, float least) noexcept;

    // Recomputes every inner node. O(capacity).
    void rebuild() noexcept;

    // Whether every inner node is, to the bit, what rebuild() would make it. O(capacity).
    bool verify() const noexcept;

   protected:
    friend class SumTree;
    explicit Operations(SumTree& tree) noexcept : tree_(tree) {}

    SumTree& tree_;

   private:
    void write(std::int64_t leaf, float priority) noexcept;
    template <class Set>
    void set_each(std::span<const std::int64_t> leaves, Set&& set) noexcept;
    void recompute(std::span<const std::int64_t> leaves) noexcept;
    void recompute_range(std::int64_t first, std::int64_t n) noexcept;
};

// The tree while its lock is held, by one thread. Ends the hold when it is destroyed.
class SumTree::Held : public SumTree::Operations {
   public:
    ~Held() { tree_.header_->lock.unlock(); }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;

   private:
    friend class SumTree;
    Held(SumTree& tree, bool abandoned) noexcept;
};

inline SumTree::Operations SumTree::without_lock() noexcept { return Operations(*this); }

// The index of the first priority that is no number, negative, or above SumTree::largest_priority; -1 if there is none.
std::int64_t first_invalid_priority(std::span<const float> priorities) noexcept;

}  // namespace rollmill
