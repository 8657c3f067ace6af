// What Python says of priorities and weights, for sum trees, slots and rings.
#pragma once

#include <string>
#include <vector>

#include "bindings/buffers.h"
#include "core/priorities.h"

namespace rollmill {

inline std::string text(double value) { return nb::cast<std::string>(nb::repr(nb::float_(value))); }

inline Weights weights_named(const std::string& name) {
    if (name == "ones") return Weights::ones;
    if (name == "batch") return Weights::batch;
    if (name == "global") return Weights::everything;
    if (name == "none") return Weights::none;
    raise_value_error("weights is '", name, "'; allowed: 'ones', 'batch', 'global', 'none'");
}

// Raises ValueError for an error that gives no priority.
inline std::vector<float> checked_priorities(std::span<const float> errors, PriorityRule rule) {
    std::vector<float> priorities(errors.size());
    const std::int64_t at = priorities_of_errors(errors, rule, priorities);
    if (at < 0) return priorities;
    const auto priority = static_cast<double>(priorities[static_cast<std::size_t>(at)]);
    raise_value_error("td_errors[", at, "] is ", text(static_cast<double>(errors[at])), " and gives the priority ",
                      text(priority),
                      "; errors must be finite, and priorities above 0 and at most 2^64. Nothing was updated; ",
                      (priority == 0.0 ? "give a larger epsilon or a smaller alpha" : "look for a loss that diverges"));
}

}  // namespace rollmill
