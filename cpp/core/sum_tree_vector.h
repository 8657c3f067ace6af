// A group of siblings in x86's vectors. Included, once, by each file that has defined
//
//   ROLLMILL_INLINE   the attributes of a function that is inlined into one with its set's instructions, and
//   Lanes             a Block of eight float64, and what its instructions do with it,
//
// for the reasons that sum_tree_loops.h gives, and before it.

struct Group {
    using Block = Lanes::Block;

    // In halves, whatever a Block is: operations on 256 bits have more ports than those on 512, and no lane has to
    // move.
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
            const Block prefix = Lanes::add(Lanes::every(carry), Lanes::prefixes(Lanes::widen(c + block)));
            before[lanes - 1] = carry;
            Lanes::store(before + lanes, prefix);
            carry = before[2 * lanes - 1];
            const unsigned live = Lanes::live(c + block);
            if (live == 0) continue;
            const unsigned hit = live & Lanes::above(prefix, *residual);
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
        const Block prefix_0 = Lanes::prefixes(Lanes::widen(c));
        const Block prefix_1 = Lanes::add(Lanes::last(prefix_0), Lanes::prefixes(Lanes::widen(c + lanes)));
        seen->before[lanes - 1] = 0.0;
        Lanes::store(seen->before + lanes, prefix_0);
        Lanes::store(seen->before + 2 * lanes, prefix_1);
        seen->live = Lanes::live_of_two(c);
        seen->hit = seen->live & Lanes::above_of_two(prefix_0, prefix_1, residual);
    }

    ROLLMILL_INLINE int pick(const Seen& seen, double* residual) noexcept {
        const int found = choose(seen.hit, seen.live);
        subtract(residual, seen.before[lanes - 1 + found]);
        return found;
    }

   private:
    // The first lane that is hit, else the last that is live, else 0.
    ROLLMILL_INLINE int choose(unsigned hit, unsigned live) noexcept {
        return hit != 0 ? std::countr_zero(hit) : 31 - std::countl_zero(live | 1u);
    }

    ROLLMILL_INLINE void subtract(double* residual, double before) noexcept {
        const double left = *residual - before;
        *residual = left > 0.0 ? left : 0.0;
    }
};
