// Random numbers from a seed and a counter: the state is 16 bytes that the caller owns, stores and restores.
#pragma once

#include <cstdint>

namespace rollmill {

// SplitMix64 (Steele, Lea and Flood 2014) entered at a place that the seed decides: number i of a stream is a function of
// (seed, i) alone. O(1). Not shared between threads.
struct Random {
    std::uint64_t seed;
    std::uint64_t counter;  // numbers drawn

    std::uint64_t bits() noexcept {
        // Seeds are often 0, 1, 2, ...: mixed, they start far from each other in the one cycle of 2^64 numbers.
        return mix(mix(seed ^ 0x6a09e667f3bcc909u) + golden_gamma * ++counter);
    }

    // Uniform in [0, 1), a multiple of 2^-53.
    double uniform() noexcept { return static_cast<double>(bits() >> 11) * 0x1p-53; }

   private:
    static constexpr std::uint64_t golden_gamma = 0x9e3779b97f4a7c15u;

    static constexpr std::uint64_t mix(std::uint64_t z) noexcept {
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
    }
};
static_assert(sizeof(Random) == 2 * sizeof(std::uint64_t));

}  // namespace rollmill
