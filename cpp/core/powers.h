// Powers of many float32 at once: the priorities and the importance weights of prioritised replay.
#pragma once

#include <span>

namespace rollmill {

// y = ((|x| + offset) * scale)^exponent; computed in float64 and rounded once, so that the result is off by little more
// than half a unit in the last place. Priorities (Schaul et al. 2016, section 3.3) are x = TD error, offset = epsilon,
// exponent = alpha; weights (section 3.4) are x = priority, scale = N / total, exponent = -beta.
struct Power {
    double offset = 0.0;
    double scale = 1.0;
    double exponent = 1.0;
};

// y[i] for all i; y may be x. NaN gives NaN; 0^0 = 1; what float32 cannot hold becomes infinity or 0. A fused multiply-add,
// where there is one, may move a result that lies between two float32 to the other. Any thread. O(n).
void powers(std::span<const float> x, Power power, std::span<float> y) noexcept;

}  // namespace rollmill
