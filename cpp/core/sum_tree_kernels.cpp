#include "core/sum_tree_kernels.h"

#include <algorithm>

namespace rollmill {

Instructions best_instructions() noexcept {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return Instructions::avx512;
    if (__builtin_cpu_supports("avx2")) return Instructions::avx2;
#endif
    return Instructions::scalar;
}

const SumTreeKernels& sum_tree_kernels(Instructions most, int fanout) noexcept {
#if defined(__x86_64__)
    constexpr int block = 8;  // smaller groups fill no register
    if (fanout >= block) {
        const Instructions chosen = std::min(most, best_instructions());
        if (chosen == Instructions::avx512) return avx512_kernels(fanout);
        if (chosen == Instructions::avx2) return avx2_kernels(fanout);
    }
#else
    (void)most;
#endif
    return scalar_kernels(fanout);
}

}  // namespace rollmill
