// Operations of a sum tree, mostly under its lock.
#include <algorithm>
#include <cstring>

#include "core/sum_tree.h"

namespace rollmill {
namespace {

// Leaves ahead whose lines are asked for.
constexpr std::size_t prefetched = 16;

template <class T>
T load(const T& word) noexcept {
    return std::atomic_ref<T>(const_cast<T&>(word)).load(std::memory_order_relaxed);
}

}  // namespace

SumTree::Held::Held(SumTree& tree, bool abandoned) noexcept : Operations(tree) {
    if (!abandoned) return;
    rebuild();
    tree_.header_->repairs.fetch_add(1, std::memory_order_relaxed);
    tree_.header_->lock.mark_consistent();  // last: a death before this leaves the lock abandoned
}

void SumTree::Operations::write(std::int64_t leaf, float priority) noexcept {
    if (priority > maximum()) set_maximum(priority);
    // -0 becomes 0: sums of both would depend on the order. Atomic because priority() reads without the lock.
    std::atomic_ref<float>(tree_.levels_[0][leaf]).store(priority + 0.0f, std::memory_order_relaxed);
}

// Calls `set(i)` for each leaf, whose line is fetched some leaves ahead; then their ancestors are recomputed.
template <class Set>
void SumTree::Operations::set_each(std::span<const std::int64_t> leaves, Set&& set) noexcept {
    const std::size_t n = leaves.size();
    for (std::size_t i = 0; i < n; ++i) {
        if (i + prefetched < n) tree_.prefetch(leaves[i + prefetched]);
        set(i);
    }
    recompute(leaves);
}

void SumTree::Operations::assign(std::span<const std::int64_t> leaves, std::span<const float> priorities) noexcept {
    set_each(leaves, [&](std::size_t i) { write(leaves[i], priorities[i]); });
}

void SumTree::Operations::assign(std::span<const std::int64_t> leaves, float priority) noexcept {
    set_each(leaves, [&](std::size_t i) { write(leaves[i], priority); });
}

std::int64_t SumTree::Operations::assign_if_alive(std::span<const std::int64_t> leaves,
                                                  std::span<const float> priorities,
                                                  std::span<const std::int64_t> generations,
                                                  const std::int64_t* current_generations,
                                                  std::int64_t rows_per_generation) noexcept {
    std::int64_t skipped = 0;
    set_each(leaves, [&](std::size_t i) {
        const std::int64_t leaf = leaves[i];
        if (generations[i] == load(current_generations[leaf / rows_per_generation]) && tree_.levels_[0][leaf] > 0.0f)
            write(leaf, priorities[i]);
        else
            ++skipped;
    });
    return skipped;
}

void SumTree::Operations::fill(std::int64_t first, std::int64_t n, float priority) noexcept {
    if (n <= 0) return;
    for (std::int64_t i = 0; i < n; ++i) write(first + i, priority);
    recompute_range(first, n);
}

void SumTree::Operations::rebuild() noexcept { recompute_range(0, tree_.capacity_); }

void SumTree::Operations::recompute_range(std::int64_t first, std::int64_t n) noexcept {
    const SumTreeKernels& kernels = *tree_.kernels_;
    for (int level = 1; level < tree_.num_levels_; ++level) {
        const int shift = level * tree_.fanout_bits_;
        const std::int64_t begin = first >> shift;
        const std::int64_t end = ((first + n - 1) >> shift) + 1;
        kernels.sum_range(tree_.levels_[level - 1], tree_.levels_[level], begin, end, tree_.fanout());
        if (tree_.has_minimum())
            kernels.minimum_range(tree_.minimums_[level - 1], tree_.minimums_[level], begin, end, tree_.fanout());
    }
}

void SumTree::Operations::recompute(std::span<const std::int64_t> leaves) noexcept {
    const std::int64_t n = std::ssize(leaves);
    const SumTreeKernels& kernels = *tree_.kernels_;
    for (int level = 1; level < tree_.num_levels_; ++level) {
        const int shift = level * tree_.fanout_bits_;
        const std::int64_t nodes = tree_.nodes_[level];
        const auto run = [&](auto scattered, auto range, const float* children, float* parents) {
            // A level with no more nodes than there are leaves is cheaper whole, and in order, than node by node.
            if (nodes <= n)
                range(children, parents, 0, nodes, tree_.fanout());
            else
                scattered(children, parents, leaves, shift, tree_.fanout());
        };
        run(kernels.sum_scattered, kernels.sum_range, tree_.levels_[level - 1], tree_.levels_[level]);
        if (tree_.has_minimum())
            run(kernels.minimum_scattered, kernels.minimum_range, tree_.minimums_[level - 1], tree_.minimums_[level]);
    }
}

bool SumTree::Operations::draw(Random& random, bool stratified, std::span<std::int64_t> leaves,
                               std::span<float> priorities) noexcept {
    const std::int64_t n = std::ssize(leaves);
    const double mass = static_cast<double>(total());
    if (!(mass > 0.0)) return false;
    constexpr std::int64_t block = 256;
    double residuals[block];
    for (std::int64_t start = 0; start < n; start += block) {
        const std::int64_t count = std::min(block, n - start);
        for (std::int64_t i = 0; i < count; ++i) {
            const double u = random.uniform();
            residuals[i] = mass * (stratified ? (static_cast<double>(start + i) + u) / static_cast<double>(n) : u);
        }
        find({residuals, static_cast<std::size_t>(count)}, leaves.subspan(start, count));
        for (std::int64_t i = start; i < start + count; ++i) priorities[i] = tree_.levels_[0][leaves[i]];
    }
    return true;
}

void SumTree::Operations::find(std::span<double> residuals, std::span<std::int64_t> leaves) noexcept {
    tree_.kernels_->find(tree_.levels_, tree_.num_levels_ - 1, residuals, leaves.data(), tree_.fanout());
}

float SumTree::Operations::total() const noexcept { return tree_.levels_[tree_.num_levels_ - 1][0]; }

float SumTree::Operations::minimum() const noexcept { return tree_.minimums_[tree_.num_levels_ - 1][0]; }

float SumTree::Operations::maximum() const noexcept { return tree_.header_->maximum.load(std::memory_order_relaxed); }

void SumTree::Operations::set_maximum(float priority) noexcept {
    tree_.header_->maximum.store(priority, std::memory_order_relaxed);
}

void SumTree::Operations::decay_maximum(double factor, float least) noexcept {
    if (factor < 1.0) set_maximum(std::max(static_cast<float>(maximum() * factor), std::min(maximum(), least)));
}

bool SumTree::Operations::verify() const noexcept {
    constexpr std::int64_t block = 256;
    float expected[block];
    const auto same = [&](auto recompute, const float* children, const float* parents, std::int64_t nodes) {
        for (std::int64_t start = 0; start < nodes; start += block) {
            const std::int64_t count = std::min(block, nodes - start);
            recompute(children + start * tree_.fanout(), expected, 0, count, tree_.fanout());
            if (std::memcmp(expected, parents + start, static_cast<std::size_t>(count) * sizeof(float)) != 0) return false;
        }
        return true;
    };
    const SumTreeKernels& kernels = *tree_.kernels_;
    for (int level = 1; level < tree_.num_levels_; ++level) {
        const std::int64_t nodes = tree_.nodes_[level];
        if (!same(kernels.sum_range, tree_.levels_[level - 1], tree_.levels_[level], nodes)) return false;
        if (tree_.has_minimum() &&
            !same(kernels.minimum_range, tree_.minimums_[level - 1], tree_.minimums_[level], nodes))
            return false;
    }
    return true;
}

std::int64_t first_invalid_priority(std::span<const float> priorities) noexcept {
    for (std::int64_t i = 0; i < std::ssize(priorities); ++i)
        if (!(priorities[i] >= 0.0f && priorities[i] <= SumTree::largest_priority)) return i;
    return -1;
}

}  // namespace rollmill
