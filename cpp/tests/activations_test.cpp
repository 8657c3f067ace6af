#include "core/activations.h"

#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "check.h"

namespace {

using rollmill::Activation;

float widen(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

double elu(double x) { return x > 0 ? x : std::expm1(x); }

}  // namespace

TEST(activations_of_every_bfloat16) {
    std::vector<std::uint16_t> every(1 << 16);
    for (std::size_t i = 0; i < every.size(); ++i) every[i] = static_cast<std::uint16_t>(i);
    std::vector<std::uint16_t> relu = every, elus = every;
    rollmill::activate(relu, Activation::relu);
    rollmill::activate(elus, Activation::elu);
    for (std::size_t i = 0; i < every.size(); ++i) {
        const float x = widen(every[i]);
        if (std::isnan(x)) {
            CHECK(std::isnan(widen(relu[i])) && std::isnan(widen(elus[i])));
            continue;
        }
        CHECK(widen(relu[i]) == (x > 0 ? x : 0.0f));
        const double exact = elu(x);
        // Half a unit in the last of eight binary digits, and the float32 error before it.
        CHECK(std::isinf(x) ? widen(elus[i]) == static_cast<float>(exact)
                            : std::abs(widen(elus[i]) - exact) <= std::abs(exact) * 0x1.00001p-8);
    }
}

TEST(elu_and_gradients_in_float32) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0.0f, 4.0f);
    for (const std::int64_t count : {0, 1, 7, 64, 1001}) {
        std::vector<float> x(static_cast<std::size_t>(count)), gradient(x.size()), dst(x.size());
        for (float& value : x) value = normal(random);
        for (float& value : gradient) value = normal(random);
        std::vector<float> y = x;
        rollmill::activate(y, Activation::elu);
        rollmill::activation_gradient(dst, gradient.data(), y.data(), Activation::elu);
        for (std::size_t i = 0; i < x.size(); ++i) {
            CHECK(std::abs(y[i] - elu(x[i])) <= 2e-7 * std::abs(elu(x[i])));
            const double slope = x[i] > 0 ? 1.0 : std::exp(static_cast<double>(x[i]));
            CHECK(std::abs(dst[i] - gradient[i] * slope) <= 1e-6 * std::abs(gradient[i]));
        }
        y = x;
        rollmill::activate(y, Activation::relu);
        rollmill::activation_gradient(dst, gradient.data(), y.data(), Activation::relu);
        for (std::size_t i = 0; i < x.size(); ++i) CHECK(dst[i] == (x[i] > 0 ? gradient[i] : 0.0f));
    }
}

TEST(gradients_in_bfloat16_keep_what_is_not_a_number) {
    constexpr std::uint16_t one = 0x3f80, half = 0xbf00, nan = 0x7fff;
    const std::uint16_t gradient[] = {one, one, nan, one}, output[] = {one, half, one, nan};
    std::uint16_t dst[4];
    rollmill::activation_gradient(dst, gradient, output, Activation::elu);
    CHECK(dst[0] == one && dst[1] == 0x3f00 && std::isnan(widen(dst[2])) && std::isnan(widen(dst[3])));
}
