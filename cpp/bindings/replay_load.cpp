// The replay's load driver, and what the layout of its tree is worth, for `rollmill bench replay`.
#include "benchmarks/replay_load.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <tuple>

#include "benchmarks/tree_alignment.h"
#include "bindings/buffers.h"

namespace rollmill {
namespace {

nb::dict replay_load(const benchmarks::ReplayLoad& load) {
    std::vector<benchmarks::OperationReport> reports;
    {
        const nb::gil_scoped_release released;
        reports = benchmarks::run_replay_load(load);
    }
    nb::dict result;
    for (const benchmarks::OperationReport& report : reports) {
        nb::dict operation;
        operation["per_second"] = static_cast<double>(report.count) / load.seconds;
        operation["p50_us"] = report.p50;
        operation["p99_us"] = report.p99;
        operation["p999_us"] = report.p999;
        result[report.name.c_str()] = operation;
    }
    return result;
}

}  // namespace

void bind_replay_load(nb::module_& m) {
    m.def(
        "replay_load",
        [](std::string locking, int num_workers, bool processes, double seconds, std::int64_t capacity,
           std::int64_t row_bytes, std::int64_t insert_rows, std::int64_t batch) {
            return replay_load(
                {std::move(locking), num_workers, processes, seconds, capacity, row_bytes, insert_rows, batch});
        },
        "locking"_a, "num_workers"_a, nb::kw_only(), "processes"_a, "seconds"_a, "capacity"_a, "row_bytes"_a,
        "insert_rows"_a = 64, "batch"_a = 256);
    m.def(
        "tree_alignment",
        [](std::int64_t capacity, int fanout, std::size_t offset, std::int64_t batch, std::int64_t inserted,
           double seconds) {
            benchmarks::TreeTimes times;
            {
                const nb::gil_scoped_release released;
                times = benchmarks::measure_tree_alignment({capacity, fanout, offset, batch, inserted, seconds});
            }
            return std::make_tuple(times.find_us, times.update_us, times.insert_us);
        },
        nb::kw_only(), "capacity"_a, "fanout"_a, "offset"_a, "batch"_a, "inserted"_a, "seconds"_a);
}

}  // namespace rollmill
