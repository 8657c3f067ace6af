// The loops around a group of siblings. Included, once, by each file that has defined
//
//   ROLLMILL_TARGET   the attribute that allows the instructions of its set, and
//   Group             sum(), minimum() and find() of one group, as sum_tree_kernels.h defines them,
//
// both in its own anonymous namespace: the same source is compiled to different instructions, and the linker must not
// take one for the other. `K` is the fanout, or 0 for one that is known at run time only.

template <int K>
struct Loops {
    ROLLMILL_TARGET static void sum_scattered(const float* children, float* parents, const std::int64_t* leaves,
                                              std::int64_t n, int shift, int fanout) {
        if constexpr (K > 0) fanout = K;
        for (std::int64_t i = 0; i < n; ++i) {
            const std::int64_t parent = leaves[i] >> shift;
            parents[parent] = Group::sum(children + parent * fanout, fanout);
        }
    }

    ROLLMILL_TARGET static void sum_range(const float* children, float* parents, std::int64_t first, std::int64_t last,
                                          int fanout) {
        if constexpr (K > 0) fanout = K;
        for (std::int64_t i = first; i < last; ++i) parents[i] = Group::sum(children + i * fanout, fanout);
    }

    ROLLMILL_TARGET static void minimum_scattered(const float* children, float* parents, const std::int64_t* leaves,
                                                  std::int64_t n, int shift, int fanout) {
        if constexpr (K > 0) fanout = K;
        for (std::int64_t i = 0; i < n; ++i) {
            const std::int64_t parent = leaves[i] >> shift;
            parents[parent] = Group::minimum(children + parent * fanout, fanout);
        }
    }

    ROLLMILL_TARGET static void minimum_range(const float* children, float* parents, std::int64_t first,
                                              std::int64_t last, int fanout) {
        if constexpr (K > 0) fanout = K;
        for (std::int64_t i = first; i < last; ++i) parents[i] = Group::minimum(children + i * fanout, fanout);
    }

    // A search is a chain of loads, each of which needs the one before: searches go down together, a level at a time, and
    // each asks for its next line of memory before the others take their turn.
    static constexpr std::int64_t together = 16;
    static constexpr int line_floats = 16;

    ROLLMILL_TARGET static void find(const float* const* levels, int depth, double* residuals, std::int64_t n,
                                     std::int64_t* leaves, int fanout) {
        if constexpr (K > 0) fanout = K;
        for (std::int64_t start = 0; start < n; start += together) {
            const std::int64_t count = n - start < together ? n - start : together;
            double* residual = residuals + start;
            std::int64_t* node = leaves + start;
            for (std::int64_t i = 0; i < count; ++i) node[i] = 0;
            for (int level = depth - 1; level >= 0; --level) {
                const float* children = levels[level];
                const float* below = level > 0 ? levels[level - 1] : nullptr;
                for (std::int64_t i = 0; i < count; ++i) {
                    const std::int64_t first = node[i] * fanout;
                    node[i] = first + Group::find(children + first, fanout, &residual[i]);
                    if (below != nullptr)
                        for (int at = 0; at < fanout; at += line_floats)
                            __builtin_prefetch(below + node[i] * fanout + at);
                }
            }
        }
    }

    static constexpr SumTreeKernels table{sum_scattered, sum_range, minimum_scattered, minimum_range, find};
};
