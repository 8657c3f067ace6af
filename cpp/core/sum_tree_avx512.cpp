// The sum tree's kernels in AVX-512: a block of eight float64 is one register.
#if defined(__x86_64__)

#include <immintrin.h>

#include <bit>
#include <cstdint>

#include "core/sum_tree_kernels.h"

#if !defined(__clang__)
// GCC 12's intrinsics initialise the registers that they leave undefined with themselves.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#define ROLLMILL_TARGET __attribute__((target("avx512f,avx512dq,avx512vl")))
#define ROLLMILL_INLINE [[gnu::always_inline]] ROLLMILL_TARGET static inline

namespace rollmill {
namespace {

constexpr int lanes = 8;

struct Lanes {
    using Block = __m512d;

    ROLLMILL_INLINE Block widen(const float* c) noexcept { return _mm512_cvtps_pd(_mm256_loadu_ps(c)); }
    ROLLMILL_INLINE Block every(double value) noexcept { return _mm512_set1_pd(value); }
    ROLLMILL_INLINE Block add(Block a, Block b) noexcept { return _mm512_add_pd(a, b); }
    ROLLMILL_INLINE void store(double* to, Block block) noexcept { _mm512_store_pd(to, block); }

    ROLLMILL_INLINE Block prefixes(Block p) noexcept {
        p = _mm512_mask_add_pd(p, 0b10101010, p, _mm512_movedup_pd(p));
        p = _mm512_mask_add_pd(p, 0b11001100, p, _mm512_permutex_pd(p, 0b01010101));
        return _mm512_mask_add_pd(p, 0b11110000, p, _mm512_permutexvar_pd(_mm512_set1_epi64(3), p));
    }

    // The last prefix, in every lane.
    ROLLMILL_INLINE Block last(Block prefix) noexcept {
        return _mm512_permutexvar_pd(_mm512_set1_epi64(lanes - 1), prefix);
    }

    // Bits of the lanes that are positive, of eight children and of sixteen.
    ROLLMILL_INLINE unsigned live(const float* c) noexcept {
        return _mm256_cmp_ps_mask(_mm256_loadu_ps(c), _mm256_setzero_ps(), _CMP_GT_OQ);
    }
    ROLLMILL_INLINE unsigned live_of_two(const float* c) noexcept {
        return _mm512_cmp_ps_mask(_mm512_loadu_ps(c), _mm512_setzero_ps(), _CMP_GT_OQ);
    }

    // Bits of the lanes that are above `residual`.
    ROLLMILL_INLINE __mmask8 above(Block prefix, double residual) noexcept {
        return _mm512_cmp_pd_mask(prefix, _mm512_set1_pd(residual), _CMP_GT_OQ);
    }
    ROLLMILL_INLINE unsigned above_of_two(Block first, Block second, double residual) noexcept {
        return _mm512_kunpackb(above(second, residual), above(first, residual));
    }
};

#include "core/sum_tree_vector.h"

#include "core/sum_tree_loops.h"

}  // namespace

const SumTreeKernels& avx512_kernels(int fanout) noexcept { return table(fanout); }

}  // namespace rollmill

#endif
