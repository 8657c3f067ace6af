// The sum tree's inner loops, once for each instruction set; all of them compute the same bits.
//
// What makes that possible is a fixed order of operations, all in float64, on a group of K sibling nodes c[0..K):
//
//   sum      Lane j of 8 adds c[j], c[j + 8], c[j + 16], ... from the left; then lanes 4..7 are added to 0..3, 2..3 to
//            0..1, and 1 to 0. The node is that, rounded to float32.
//   prefix   Blocks of 8, missing children being 0. Within a block, three steps (Sklansky): the upper half of each pair,
//            of each four, of the eight adds the last prefix of the lower half. The prefixes of a block are added to the
//            carry, which is 0 for the first block and the last prefix of the block before for the others.
//   find     The first child that is > 0 and whose inclusive prefix is > the residual; if rounding left none, the last
//            child > 0. The new residual is max(0, residual - exclusive prefix), with the exclusive prefix that of the
//            child before. A child of 0 is never found, so none of its leaves is ever drawn.
//   minimum  Over the children > 0; 0 if there is none.
//
// No function here allocates, locks or throws; callers hold the tree's lock.
#pragma once

#include <cstdint>
#include <span>

namespace rollmill {

// In ascending order of what they need from the machine.
enum class Instructions { scalar, avx2, avx512 };

// The best that this machine has.
Instructions best_instructions() noexcept;

struct SumTreeKernels {
    // parents[leaf >> shift] = the sum of that node's children, for each of n leaves. O(n K).
    void (*sum_scattered)(const float* children, float* parents, std::span<const std::int64_t> leaves, int shift,
                          int fanout);
    // parents[i] = the sum of its children, for first <= i < last. O((last - first) K).
    void (*sum_range)(const float* children, float* parents, std::int64_t first, std::int64_t last, int fanout);
    // The same with the minimum.
    void (*minimum_scattered)(const float* children, float* parents, std::span<const std::int64_t> leaves, int shift,
                              int fanout);
    void (*minimum_range)(const float* children, float* parents, std::int64_t first, std::int64_t last, int fanout);
    // leaves[i] = where the search for residuals[i] ends, for each of n residuals, from levels[depth - 1] (the root's
    // children) down to levels[0]. Overwrites the residuals. O(n K depth).
    void (*find)(const float* const* levels, int depth, std::span<double> residuals, std::int64_t* leaves, int fanout);
};

// Kernels for this fanout with at most these instructions; what the machine lacks is never chosen.
const SumTreeKernels& sum_tree_kernels(Instructions most, int fanout) noexcept;

// One instruction set each, for sum_tree_kernels only; the last two on x86-64 alone, and for a fanout of 8 or more.
const SumTreeKernels& scalar_kernels(int fanout) noexcept;
const SumTreeKernels& avx2_kernels(int fanout) noexcept;
const SumTreeKernels& avx512_kernels(int fanout) noexcept;

}  // namespace rollmill
