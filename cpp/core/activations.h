// Activation functions in place, and their gradients from the outputs; float32, or bfloat16 as its bits in uint16.
#pragma once

#include <cstdint>
#include <span>

namespace rollmill {

enum class Activation { relu, elu };

// x = f(x). NaN stays NaN. ELU's exponential is within 2e-7 of the exact one, before it is rounded to bfloat16.
void activate(std::span<float> x, Activation kind) noexcept;
void activate(std::span<std::uint16_t> x, Activation kind) noexcept;

// dst = gradient * f'(x), where output = f(x); all of one length. `dst` overlaps neither of the others.
void activation_gradient(std::span<float> dst, const float* gradient, const float* output, Activation kind) noexcept;
void activation_gradient(std::span<std::uint16_t> dst, const std::uint16_t* gradient, const std::uint16_t* output,
                         Activation kind) noexcept;

}  // namespace rollmill
