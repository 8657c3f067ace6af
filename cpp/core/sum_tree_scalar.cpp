// The definition in sum_tree_kernels.h, word for word: what the other instruction sets are tested against.
#include <algorithm>
#include <cstdint>

#include "core/sum_tree_kernels.h"

#define ROLLMILL_TARGET

namespace rollmill {
namespace {

constexpr int lanes = 8;

struct Group {
    static float sum(const float* c, int fanout) noexcept {
        double lane[lanes] = {};
        for (int j = 0; j < fanout; ++j) lane[j % lanes] += static_cast<double>(c[j]);
        for (int half = lanes / 2; half > 0; half /= 2)
            for (int j = 0; j < half; ++j) lane[j] += lane[j + half];
        return static_cast<float>(lane[0]);
    }

    static float minimum(const float* c, int fanout) noexcept {
        float least = 0.0f;
        for (int j = 0; j < fanout; ++j)
            if (c[j] > 0.0f && (least == 0.0f || c[j] < least)) least = c[j];
        return least;
    }

    static int find(const float* c, int fanout, double* residual) noexcept {
        int found = 0;
        double before_found = 0.0;
        double carry = 0.0;
        for (int block = 0; block < fanout; block += lanes) {
            double prefix[lanes] = {};
            for (int j = 0; j < std::min(lanes, fanout - block); ++j) prefix[j] = static_cast<double>(c[block + j]);
            for (int half = 1; half < lanes; half *= 2)
                for (int j = 0; j < lanes; ++j)
                    if ((j & half) != 0) prefix[j] += prefix[(j & ~(2 * half - 1)) + half - 1];
            double before = carry;
            for (int j = 0; j < std::min(lanes, fanout - block); ++j) {
                const double inclusive = carry + prefix[j];
                if (c[block + j] > 0.0f) {
                    found = block + j;
                    before_found = before;
                    if (inclusive > *residual) {
                        *residual = std::max(0.0, *residual - before_found);
                        return found;
                    }
                }
                before = inclusive;
            }
            carry += prefix[lanes - 1];
        }
        *residual = std::max(0.0, *residual - before_found);
        return found;
    }

    struct Seen {
        int child;
        double residual;
    };

    static void look(const float* c, double residual, Seen* seen) noexcept {
        seen->child = find(c, 2 * lanes, &residual);
        seen->residual = residual;
    }

    static int pick(const Seen& seen, double* residual) noexcept {
        *residual = seen.residual;
        return seen.child;
    }
};

#include "core/sum_tree_loops.h"

}  // namespace

const SumTreeKernels& scalar_kernels(int fanout) noexcept { return table(fanout); }

}  // namespace rollmill
