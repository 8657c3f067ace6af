#include "core/activations.h"

#include <bit>

#include "core/vector_width.h"

namespace rollmill {

namespace {

// exp(x) - 1 for x <= 0, branchless: x = n log(2) + r with |r| <= log(2) / 2, then 2^n (expm1(r) + 1) - 1. NaN stays NaN.
[[gnu::always_inline]] inline float expm1_of_negative(float x) noexcept {
    constexpr float rounder = 12582912.0f;  // 1.5 * 2^23: adding it leaves an integer in the last bits
    constexpr float log2_e = 1.44269504f, log_2_high = 0.693359375f, log_2_low = -2.12194440e-4f;
    x = x < -25.0f ? -25.0f : x;  // -1 to the last bit; written so that NaN passes
    const float shifted = x * log2_e + rounder;
    const float n = shifted - rounder;
    const float r = (x - n * log_2_high) - n * log_2_low;
    float p = 1.0f / 5040;  // the Taylor series, whose next term is below 1.5e-8
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * (r * r) + r;
    const auto exponent = (std::bit_cast<std::uint32_t>(shifted) << 23) + (127u << 23);
    const float scale = std::bit_cast<float>(exponent);
    return scale * p + (scale - 1.0f);
}

[[gnu::always_inline]] inline float widen(std::uint16_t bits) noexcept {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

// To nearest even; NaN stays NaN.
[[gnu::always_inline]] inline std::uint16_t narrow(float value) noexcept {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return static_cast<std::uint16_t>(value == value ? rounded : (bits >> 16) | 0x40u);
}

}  // namespace

// Named, not anonymous: the linker must see the resolver of each.
namespace activation_kernels {

ROLLMILL_EACH_VECTOR_WIDTH
void relu(float* x, std::int64_t count) noexcept {
    for (std::int64_t i = 0; i < count; ++i) x[i] = x[i] <= 0.0f ? 0.0f : x[i];
}

ROLLMILL_EACH_VECTOR_WIDTH
void relu(std::uint16_t* x, std::int64_t count) noexcept {
    // The bits of -0 to -infinity; NaNs with a sign are larger.
    for (std::int64_t i = 0; i < count; ++i) x[i] = static_cast<std::uint16_t>(x[i] - 0x8000u) <= 0x7f80u ? 0 : x[i];
}

ROLLMILL_EACH_VECTOR_WIDTH
void elu(float* x, std::int64_t count) noexcept {
    for (std::int64_t i = 0; i < count; ++i) {
        const float below = expm1_of_negative(x[i]);
        x[i] = x[i] > 0.0f ? x[i] : below;
    }
}

ROLLMILL_EACH_VECTOR_WIDTH
void elu(std::uint16_t* x, std::int64_t count) noexcept {
    for (std::int64_t i = 0; i < count; ++i) {
        const float value = widen(x[i]);
        const std::uint16_t below = narrow(expm1_of_negative(value));
        x[i] = value > 0.0f ? x[i] : below;
    }
}

ROLLMILL_EACH_VECTOR_WIDTH
void relu_gradient(float* __restrict dst, const float* gradient, const float* output, std::int64_t count) noexcept {
    for (std::int64_t i = 0; i < count; ++i) {
        const float whole = gradient[i];
        dst[i] = output[i] <= 0.0f ? 0.0f : whole;
    }
}

ROLLMILL_EACH_VECTOR_WIDTH
void relu_gradient(std::uint16_t* __restrict dst, const std::uint16_t* gradient, const std::uint16_t* output,
                   std::int64_t count) noexcept {
    for (std::int64_t i = 0; i < count; ++i) {
        const std::uint16_t whole = gradient[i];
        dst[i] = output[i] == 0 ? 0 : whole;
    }
}

ROLLMILL_EACH_VECTOR_WIDTH
void elu_gradient(float* __restrict dst, const float* gradient, const float* output, std::int64_t count) noexcept {
    for (std::int64_t i = 0; i < count; ++i) {
        const float y = output[i], slope = y + 1.0f;
        dst[i] = gradient[i] * (y > 0.0f ? 1.0f : slope);
    }
}

ROLLMILL_EACH_VECTOR_WIDTH
void elu_gradient(std::uint16_t* __restrict dst, const std::uint16_t* gradient, const std::uint16_t* output,
                  std::int64_t count) noexcept {
    for (std::int64_t i = 0; i < count; ++i) {
        const float y = widen(output[i]), slope = y + 1.0f;
        dst[i] = narrow(widen(gradient[i]) * (y > 0.0f ? 1.0f : slope));
    }
}

}  // namespace activation_kernels

namespace kernels = activation_kernels;

void activate(std::span<float> x, Activation kind) noexcept {
    kind == Activation::relu ? kernels::relu(x.data(), std::ssize(x)) : kernels::elu(x.data(), std::ssize(x));
}

void activate(std::span<std::uint16_t> x, Activation kind) noexcept {
    kind == Activation::relu ? kernels::relu(x.data(), std::ssize(x)) : kernels::elu(x.data(), std::ssize(x));
}

void activation_gradient(std::span<float> dst, const float* gradient, const float* output, Activation kind) noexcept {
    kind == Activation::relu ? kernels::relu_gradient(dst.data(), gradient, output, std::ssize(dst))
                             : kernels::elu_gradient(dst.data(), gradient, output, std::ssize(dst));
}

void activation_gradient(std::span<std::uint16_t> dst, const std::uint16_t* gradient, const std::uint16_t* output,
                         Activation kind) noexcept {
    kind == Activation::relu ? kernels::relu_gradient(dst.data(), gradient, output, std::ssize(dst))
                             : kernels::elu_gradient(dst.data(), gradient, output, std::ssize(dst));
}

}  // namespace rollmill
