// What it is worth that the groups of siblings of a sum tree lie on cache lines of their own.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rollmill::benchmarks {

struct TreeAlignment {
    std::int64_t capacity = 1'000'000;
    int fanout = 16;
    std::size_t offset = 0;  // bytes from the start of a line to every level: a multiple of 4; 0 is the product's layout
    std::int64_t batch = 256;
    std::int64_t inserted = 64;  // leaves in a row, at most the capacity: 0 while they are written, then a priority
    double seconds = 0.1;
};

struct TreeTimes {
    double find_us = 0.0;    // medians for one batch
    double update_us = 0.0;
    double insert_us = 0.0;  // of all inserted leaves, both times
};

// The product's kernels on a tree of their own that is laid out so; one thread, no lock. Throws std::invalid_argument.
TreeTimes measure_tree_alignment(const TreeAlignment& settings);

}  // namespace rollmill::benchmarks
