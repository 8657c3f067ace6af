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

struct Group {
    struct Block {
        __m256d low;
        __m256d high;
    };

    ROLLMILL_INLINE float sum(const float* c, int fanout) noexcept {
        Block lane = widen(c);
        for (int j = lanes; j < fanout; j += lanes) lane = add(lane, widen(c + j));
        const __m256d four = _mm256_add_pd(lane.low, lane.high);
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
            const Block prefix = add(every(carry), prefixes(widen(c + block)));
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
        const Block prefix_0 = prefixes(widen(c));
        const Block prefix_1 = add(last(prefix_0), prefixes(widen(c + lanes)));
        seen->before[lanes - 1] = 0.0;
        store(seen->before + lanes, prefix_0);
        store(seen->before + 2 * lanes, prefix_1);
        seen->live = live_lanes(c) | live_lanes(c + lanes) << lanes;
        seen->hit = seen->live & (above(prefix_0, residual) | above(prefix_1, residual) << lanes);
    }

    ROLLMILL_INLINE int pick(const Seen& seen, double* residual) noexcept {
        const int found = choose(seen.hit, seen.live);
        subtract(residual, seen.before[lanes - 1 + found]);
        return found;
    }

   private:
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

    ROLLMILL_INLINE __m256d last_of_half(__m256d p) noexcept { return _mm256_permute4x64_pd(p, 0b11111111); }

    // Where nothing is to be added, 0 is.
    ROLLMILL_INLINE __m256d prefixes_of_half(__m256d p) noexcept {
        const __m256d zero = _mm256_setzero_pd();
        p = _mm256_add_pd(p, _mm256_blend_pd(zero, _mm256_movedup_pd(p), 0b1010));
        return _mm256_add_pd(p, _mm256_blend_pd(zero, _mm256_permute4x64_pd(p, 0b01010101), 0b1100));
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

    ROLLMILL_INLINE unsigned live_lanes(const float* c) noexcept {
        return static_cast<unsigned>(
            _mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(c), _mm256_setzero_ps(), _CMP_GT_OQ)));
    }

    ROLLMILL_INLINE unsigned above(Block prefix, double residual) noexcept {
        const __m256d r = _mm256_set1_pd(residual);
        return static_cast<unsigned>(_mm256_movemask_pd(_mm256_cmp_pd(prefix.low, r, _CMP_GT_OQ)) |
                                     _mm256_movemask_pd(_mm256_cmp_pd(prefix.high, r, _CMP_GT_OQ)) << 4);
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

const SumTreeKernels& avx2_kernels(int fanout) noexcept { return table(fanout); }

}  // namespace rollmill

#endif
