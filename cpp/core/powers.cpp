#include "core/powers.h"

#include <bit>
#include <cmath>
#include <cstdint>

#include "core/vector_width.h"

namespace rollmill {
namespace {

// The results for the two ends of the range of y, where the logarithm has none.
struct Ends {
    double at_zero;
    double at_infinity;
};

Ends ends_of(double exponent) noexcept {
    constexpr double infinity = __builtin_inf();
    if (exponent == 0.0) return {1.0, 1.0};
    return exponent > 0.0 ? Ends{0.0, infinity} : Ends{infinity, 0.0};
}

// Not `?:`, which the compiler would make a branch of, to spare the rare case its arithmetic.
[[gnu::always_inline]] inline double select(bool which, double a, double b) noexcept {
    const std::uint64_t mask = 0 - static_cast<std::uint64_t>(which);
    return std::bit_cast<double>((std::bit_cast<std::uint64_t>(a) & mask) | (std::bit_cast<std::uint64_t>(b) & ~mask));
}

// log2(y) for a normal y > 0: y = 2^e m with sqrt(1/2) <= m < sqrt(2), and log(m) = 2 artanh((m - 1) / (m + 1)), whose
// series is cut where its next term is below 5e-11 of it. Integers become doubles by the bits of 2^52, because few
// instruction sets convert 64-bit integers.
[[gnu::always_inline]] inline double log2_of(double y) noexcept {
    constexpr std::uint64_t one = 0x3ff0000000000000, half_root = 0x3fe6a09e667f3bcd;  // 1 and sqrt(1/2)
    const auto bits = std::bit_cast<std::uint64_t>(y);
    const std::uint64_t biased = (bits + (one - half_root)) >> 52;  // e + 1023
    const double m = std::bit_cast<double>(bits - (biased << 52) + one);
    const double e = std::bit_cast<double>(biased | 0x4330000000000000) - (0x1p52 + 1023.0);
    const double s = (m - 1.0) / (m + 1.0);
    const double s2 = s * s;
    double p = 1.0 / 11.0;
    p = p * s2 + 1.0 / 9.0;
    p = p * s2 + 1.0 / 7.0;
    p = p * s2 + 1.0 / 5.0;
    p = p * s2 + 1.0 / 3.0;
    p = p * s2 + 1.0;
    constexpr double two_log2_e = 2.8853900817779268;
    return e + two_log2_e * s * p;
}

// 2^z: z = n + r with |r| <= 1/2, and the Taylor series of exp(r log(2)), whose next term is below 8e-12.
[[gnu::always_inline]] inline double exp2_of(double z) noexcept {
    constexpr double rounder = 0x1.8p52;  // adding it leaves an integer in the last bits
    constexpr double limit = 300.0;       // far beyond float32, well within float64
    z = select(z < -limit, -limit, z);
    z = select(z > limit, limit, z);
    const double shifted = z + rounder;
    const double r = (z - (shifted - rounder)) * 0.6931471805599453;
    double p = 1.0 / 362880;
    p = p * r + 1.0 / 40320;
    p = p * r + 1.0 / 5040;
    p = p * r + 1.0 / 720;
    p = p * r + 1.0 / 120;
    p = p * r + 1.0 / 24;
    p = p * r + 1.0 / 6;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    return p * std::bit_cast<double>((std::bit_cast<std::uint64_t>(shifted) << 52) + 0x3ff0000000000000);
}

}  // namespace

// Named, not anonymous: the linker must see the resolver.
namespace power_kernels {

ROLLMILL_EACH_VECTOR_WIDTH
void powers(const float* x, std::int64_t n, Power power, double at_zero, double at_infinity, float* y) noexcept {
    for (std::int64_t i = 0; i < n; ++i) {
        const double base = (std::abs(static_cast<double>(x[i])) + power.offset) * power.scale;
        double result = exp2_of(power.exponent * log2_of(base));
        result = select(base < 0x1p-1022, at_zero, result);
        result = select(base > 0x1.fffffffffffffp1023, at_infinity, result);
        result = select(base != base, base, result);  // NaN
        y[i] = static_cast<float>(result);
    }
}

}  // namespace power_kernels

void powers(std::span<const float> x, Power power, std::span<float> y) noexcept {
    const Ends ends = ends_of(power.exponent);
    power_kernels::powers(x.data(), std::ssize(x), power, ends.at_zero, ends.at_infinity, y.data());
}

}  // namespace rollmill
