// Priorities out of TD errors, and importance weights out of priorities: sections 3.3 and 3.4 of Schaul et al. 2016.
#pragma once

#include <cstdint>
#include <span>

namespace rollmill {

// p = (|error| + epsilon)^alpha.
struct PriorityRule {
    double alpha = 0.6;
    double epsilon = 1e-6;

    // The least that an error gives, at least float32's least normal number: no maximum is to decay below it, as what gets
    // priority 0 is never drawn.
    float least() const noexcept;
};

// Returns the index of the first error that gives no priority, because it is not finite, or what it gives is above
// SumTree::largest_priority or too small for float32; -1 if there is none. An error of 0 without epsilon gives 0. O(n).
std::int64_t priorities_of_errors(std::span<const float> errors, PriorityRule rule, std::span<float> to) noexcept;

// What the weights (N p / total)^-beta are divided by: the greatest of the batch, the greatest that there can be, or
// nothing; or all of them are 1.
enum class Weights { ones, batch, everything, none };

// Of what the priorities were drawn from.
struct Population {
    double total;
    double least;  // priority; for Weights::everything
    std::int64_t num_items;
};

// `weights` may be `priorities`, which are not empty. O(n).
void weigh(std::span<const float> priorities, Weights kind, double beta, const Population& of,
           std::span<float> weights) noexcept;

}  // namespace rollmill
