#include "core/powers.h"

#include <cmath>

namespace rollmill {

void powers(const float* x, std::int64_t n, Power power, float* y) noexcept {
    for (std::int64_t i = 0; i < n; ++i)
        y[i] = static_cast<float>(std::pow((std::abs(static_cast<double>(x[i])) + power.offset) * power.scale, power.exponent));
}

}  // namespace rollmill
