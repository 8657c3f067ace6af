// The sum tree's kernels in AVX2: a block of eight float64 is two registers.
#if defined(__x86_64__)

#include <immintrin.h>

#include <bit>
#include <cstdint>

#include "core/sum_tree_kernels.h"

#define ROLLMILL_TARGET __attribute__((target("avx2")))
#define ROLLMILL_INLINE [[gnu::always_inline]] ROLLMILL_TARGET static inline

namespace rollmill {
namespace {

constexpr int lanes = 8;

struct Lanes {
    struct Block {
        __m256d low;
        __m256d high;
    };

    ROLLMILL_INLINE Block widen(const float* c) noexcept {
        return {_mm256_cvtps_pd(_mm_loadu_ps(c)), _mm256_cvtps_pd(_mm_loadu_ps(c + 4))};
    }

    ROLLMILL_INLINE Block every(double value) noexcept { return {_mm256_set1_pd(value), _mm256_set1_pd(value)}; }

    ROLLMILL_INLINE Block add(Block a, Block b) noexcept {
        return {_mm256_add_pd(a.low, b.low), _mm256_add_pd(a.high, b.high)};
    }

    ROLLMILL_INLINE void store(double* to, Block block) noexcept {
        _mm256_store_pd(to, block.low);
        _mm256_store_pd(to + 4, block.high);
    }

    ROLLMILL_INLINE Block prefixes(Block c) noexcept {
        const __m256d low = prefixes_of_half(c.low);
        return {low, _mm256_add_pd(prefixes_of_half(c.high), last_of_half(low))};
    }

    // The last prefix, in every lane.
    ROLLMILL_INLINE Block last(Block prefix) noexcept {
        const __m256d carry = last_of_half(prefix.high);
        return {carry, carry};
    }

    // Bits of the lanes that are positive, of eight children and of sixteen.
    ROLLMILL_INLINE unsigned live(const float* c) noexcept {
        return static_cast<unsigned>(
            _mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(c), _mm256_setzero_ps(), _CMP_GT_OQ)));
    }
    ROLLMILL_INLINE unsigned live_of_two(const float* c) noexcept { return live(c) | live(c + lanes) << lanes; }

    // Bits of the lanes that are above `residual`.
    ROLLMILL_INLINE unsigned above(Block prefix, double residual) noexcept {
        const __m256d r = _mm256_set1_pd(residual);
        return static_cast<unsigned>(_mm256_movemask_pd(_mm256_cmp_pd(prefix.low, r, _CMP_GT_OQ)) |
                                     _mm256_movemask_pd(_mm256_cmp_pd(prefix.high, r, _CMP_GT_OQ)) << 4);
    }
    ROLLMILL_INLINE unsigned above_of_two(Block first, Block second, double residual) noexcept {
        return above(first, residual) | above(second, residual) << lanes;
    }

   private:
    ROLLMILL_INLINE __m256d last_of_half(__m256d p) noexcept { return _mm256_permute4x64_pd(p, 0b11111111); }

    // Lanes that stay as they are add 0.
    ROLLMILL_INLINE __m256d prefixes_of_half(__m256d p) noexcept {
        const __m256d zero = _mm256_setzero_pd();
        p = _mm256_add_pd(p, _mm256_blend_pd(zero, _mm256_movedup_pd(p), 0b1010));
        return _mm256_add_pd(p, _mm256_blend_pd(zero, _mm256_permute4x64_pd(p, 0b01010101), 0b1100));
    }
};

#include "core/sum_tree_vector.h"

#include "core/sum_tree_loops.h"

}  // namespace

const SumTreeKernels& avx2_kernels(int fanout) noexcept { return table(fanout); }

}  // namespace rollmill

#endif
