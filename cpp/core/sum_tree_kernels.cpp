#include "core/sum_tree_kernels.h"

namespace rollmill {

Instructions best_instructions() noexcept { return Instructions::scalar; }

const SumTreeKernels& sum_tree_kernels(Instructions, int) noexcept { return scalar_kernels(); }

}  // namespace rollmill
