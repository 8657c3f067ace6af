#include "core/priorities.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/powers.h"
#include "core/sum_tree.h"

namespace rollmill {

float PriorityRule::least() const noexcept {
    return std::max(static_cast<float>(std::pow(epsilon, alpha)), std::numeric_limits<float>::min());
}

std::int64_t priorities_of_errors(std::span<const float> errors, PriorityRule rule, std::span<float> to) noexcept {
    powers(errors, {.offset = rule.epsilon, .exponent = rule.alpha}, to);
    for (std::int64_t i = 0; i < std::ssize(errors); ++i) {
        const float priority = to[i];
        const bool is_positive = priority > 0.0f || (errors[i] == 0.0f && rule.epsilon == 0.0);
        if (!(std::isfinite(errors[i]) && is_positive && priority <= SumTree::largest_priority)) return i;
    }
    return -1;
}

void weigh(std::span<const float> priorities, Weights kind, double beta, const Population& of,
           std::span<float> weights) noexcept {
    if (kind == Weights::ones) {
        std::ranges::fill(weights, 1.0f);
        return;
    }
    // Dividing weights by their greatest is dividing priorities by their least.
    double scale = static_cast<double>(of.num_items) / of.total;
    if (kind == Weights::everything) scale = 1.0 / of.least;
    if (kind == Weights::batch) scale = 1.0 / static_cast<double>(std::ranges::min(priorities));
    powers(priorities, {.scale = scale, .exponent = -beta}, weights);
}

}  // namespace rollmill
