// How fast a prioritised replay goes under load, and what its locking costs: the product's, and what it was chosen over.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace rollmill::benchmarks {

struct ReplayLoad {
    std::string locking = "robust";    // see replay_locking.h
    int num_workers = 1;               // each inserts, samples and updates in turn
    bool processes = false;            // or threads
    double seconds = 1.0;
    std::int64_t capacity = 1 << 17;   // rows
    std::int64_t row_bytes = 64;
    std::int64_t insert_rows = 64;     // rows of an insertion
    std::int64_t batch = 256;          // rows of a sample, which are gathered, and of an update
};

struct OperationReport {
    std::string name;
    std::int64_t count = 0;
    // Microseconds, to about 4 %.
    double p50 = 0.0;
    double p99 = 0.0;
    double p999 = 0.0;
};

// Runs the load; blocks for its seconds. `insert` is everything from finding the place to the priority; `sample` includes
// the gather. Throws std::invalid_argument, std::runtime_error.
std::vector<OperationReport> run_replay_load(const ReplayLoad& load);

}  // namespace rollmill::benchmarks
