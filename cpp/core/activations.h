// Activation functions in place, and their gradients from the outputs; float32, or bfloat16 as its bits in uint16.
#pragma once

#include <cstdint>

namespace rollmill {

enum class Activation { relu, elu };

// x = f(x). NaN stays NaN. ELU's exponential is within 2e-7 of the exact one, before it is rounded to bfloat16.
void activate(float* x, std::int64_t count, Activation kind) noexcept;
void activate(std::uint16_t* x, std::int64_t count, Activation kind) noexcept;

// dst = gradient * f'(x), where output = f(x); `dst` overlaps neither.
void activation_gradient(float* dst, const float* gradient, const float* output, std::int64_t count,
                         Activation kind) noexcept;
void activation_gradient(std::uint16_t* dst, const std::uint16_t* gradient, const std::uint16_t* output,
                         std::int64_t count, Activation kind) noexcept;

}  // namespace rollmill
