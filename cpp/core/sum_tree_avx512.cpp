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

struct Group {
    // In halves: what comes in 256 bits finds more ports free than what comes in 512, and no lane has to change places.
    ROLLMILL_INLINE float sum(const float* c, int fanout) noexcept {
        __m256d low = _mm256_cvtps_pd(_mm_loadu_ps(c));
        __m256d high = _mm256_cvtps_pd(_mm_loadu_ps(c + 4));
        for (int j = lanes; j < fanout; j += lanes) {
            low = _mm256_add_pd(low, _mm256_cvtps_pd(_mm_loadu_ps(c + j)));
            high = _mm256_add_pd(high, _mm256_cvtps_pd(_mm_loadu_ps(c + j + 4)));
        }
        const __m256d four = _mm256_add_pd(low, high);
        const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
        return static_cast<float>(_mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two))));
    }

    ROLLMILL_INLINE float minimum(const float* c, int fanout) noexcept {
        const __m256 none = _mm256_set1_ps(__builtin_inff());
        __m256 least = none;
        for (int j = 0; j < fanout; j += lanes) {
            const __m256 child = _mm256_loadu_ps(c + j);
            const __m256 live = _mm256_cmp_ps(child, _mm256_setzero_ps(), _CMP_GT_OQ);
            least = _mm256_min_ps(least, _mm256_blendv_ps(none, child, live));
        }
        __m128 four = _mm_min_ps(_mm256_castps256_ps128(least), _mm256_extractf128_ps(least, 1));
        four = _mm_min_ps(four, _mm_movehl_ps(four, four));
        four = _mm_min_ss(four, _mm_movehdup_ps(four));
        const float found = _mm_cvtss_f32(four);
        return found == __builtin_inff() ? 0.0f : found;
    }

    // Of a group of any number of blocks.
    ROLLMILL_INLINE int find(const float* c, int fanout, double* residual) noexcept {
        alignas(64) double before[2 * lanes];  // before[lanes - 1 + j]: the prefix before child j of the block
        double carry = 0.0;
        int found = 0;
        double before_found = 0.0;
        for (int block = 0; block < fanout; block += lanes) {
            const __m512d prefix = add(_mm512_set1_pd(carry), prefixes(widen(c + block)));
            before[lanes - 1] = carry;
            store(before + lanes, prefix);
            carry = before[2 * lanes - 1];
            const unsigned live = live_lanes(c + block);
            if (live == 0) continue;
            const unsigned hit = live & above(prefix, *residual);
            const int lane = choose(hit, live);
            found = block + lane;
            before_found = before[lanes - 1 + lane];
            if (hit != 0) break;
        }
        subtract(residual, before_found);
        return found;
    }

    // The same of a group of two blocks, in two steps and without a loop.
    struct Seen {
        alignas(64) double before[3 * lanes];
        unsigned hit;
        unsigned live;
    };

    ROLLMILL_INLINE void look(const float* c, double residual, Seen* seen) noexcept {
        const __m512d prefix_0 = prefixes(widen(c));
        const __m512d prefix_1 = add(last(prefix_0), prefixes(widen(c + lanes)));
        seen->before[lanes - 1] = 0.0;
        store(seen->before + lanes, prefix_0);
        store(seen->before + 2 * lanes, prefix_1);
        seen->live = _mm512_cmp_ps_mask(_mm512_loadu_ps(c), _mm512_setzero_ps(), _CMP_GT_OQ);
        seen->hit = seen->live & _mm512_kunpackb(above(prefix_1, residual), above(prefix_0, residual));
    }

    ROLLMILL_INLINE int pick(const Seen& seen, double* residual) noexcept {
        const int found = choose(seen.hit, seen.live);
        subtract(residual, seen.before[lanes - 1 + found]);
        return found;
    }

   private:
    ROLLMILL_INLINE __m512d widen(const float* c) noexcept { return _mm512_cvtps_pd(_mm256_loadu_ps(c)); }
    ROLLMILL_INLINE __m512d add(__m512d a, __m512d b) noexcept { return _mm512_add_pd(a, b); }
    ROLLMILL_INLINE void store(double* to, __m512d block) noexcept { _mm512_store_pd(to, block); }

    ROLLMILL_INLINE __m512d prefixes(__m512d p) noexcept {
        p = _mm512_mask_add_pd(p, 0b10101010, p, _mm512_movedup_pd(p));
        p = _mm512_mask_add_pd(p, 0b11001100, p, _mm512_permutex_pd(p, 0b01010101));
        return _mm512_mask_add_pd(p, 0b11110000, p, _mm512_permutexvar_pd(_mm512_set1_epi64(3), p));
    }

    // The last prefix, in every lane.
    ROLLMILL_INLINE __m512d last(__m512d prefix) noexcept {
        return _mm512_permutexvar_pd(_mm512_set1_epi64(lanes - 1), prefix);
    }

    ROLLMILL_INLINE unsigned live_lanes(const float* c) noexcept {
        return _mm256_cmp_ps_mask(_mm256_loadu_ps(c), _mm256_setzero_ps(), _CMP_GT_OQ);
    }

    ROLLMILL_INLINE __mmask8 above(__m512d prefix, double residual) noexcept {
        return _mm512_cmp_pd_mask(prefix, _mm512_set1_pd(residual), _CMP_GT_OQ);
    }

    // The first lane that is hit, else the last that is live, else 0.
    ROLLMILL_INLINE int choose(unsigned hit, unsigned live) noexcept {
        return hit != 0 ? std::countr_zero(hit) : 31 - std::countl_zero(live | 1u);
    }

    ROLLMILL_INLINE void subtract(double* residual, double before) noexcept {
        const double left = *residual - before;
        *residual = left > 0.0 ? left : 0.0;
    }
};

#include "core/sum_tree_loops.h"

}  // namespace

const SumTreeKernels& avx512_kernels(int fanout) noexcept { return table(fanout); }

}  // namespace rollmill

#endif
