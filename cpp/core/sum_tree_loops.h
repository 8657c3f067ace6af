// The loops around a group of siblings. Included, once, by each file that has defined
//
//   ROLLMILL_TARGET   the attribute that allows the instructions of its set, and
//   Group             sum(), minimum() and find() of one group, as sum_tree_kernels.h defines them; and look() and pick(),
//                     which together are find() for the default fanout,
//
// both in its own anonymous namespace: the same source is compiled to different instructions, and the linker must not
// merge them. `K` is the fanout, or 0 for one that is known at run time only.

template <int K>
struct Loops {
    template <bool of_minimums>
    ROLLMILL_TARGET static float reduce(const float* children, int fanout) {
        if constexpr (of_minimums) return Group::minimum(children, fanout);
        else return Group::sum(children, fanout);
    }

    template <bool of_minimums>
    ROLLMILL_TARGET static void scattered(const float* children, float* parents, std::span<const std::int64_t> leaves,
                                          int shift, int fanout) {
        if constexpr (K > 0) fanout = K;
        for (const std::int64_t leaf : leaves) {
            const std::int64_t parent = leaf >> shift;
            parents[parent] = reduce<of_minimums>(children + parent * fanout, fanout);
        }
    }

    template <bool of_minimums>
    ROLLMILL_TARGET static void range(const float* children, float* parents, std::int64_t first, std::int64_t last,
                                      int fanout) {
        if constexpr (K > 0) fanout = K;
        for (std::int64_t i = first; i < last; ++i) parents[i] = reduce<of_minimums>(children + i * fanout, fanout);
    }

    // A search is a chain of dependent loads. So several searches descend together, level by level, and each prefetches
    // its next line before the others continue. Within a level, each step is done for all searches before the next
    // step, because a processor looks about 100 waiting instructions ahead, less than three whole searches.
    static constexpr std::int64_t together = 16;
    static constexpr int line_floats = 16;

    ROLLMILL_TARGET static void find(const float* const* levels, int depth, std::span<double> residuals,
                                     std::int64_t* leaves, int fanout) {
        if constexpr (K > 0) fanout = K;
        const std::int64_t n = std::ssize(residuals);
        for (std::int64_t start = 0; start < n; start += together) {
            const std::int64_t count = n - start < together ? n - start : together;
            for (std::int64_t i = 0; i < count; ++i) leaves[start + i] = 0;
            for (int level = depth - 1; level >= 0; --level)
                find_children(levels[level], level > 0 ? levels[level - 1] : nullptr, residuals.data() + start, count,
                              leaves + start, fanout);
        }
    }

    // Replaces each node, a parent of this level's nodes, by the child where its search continues.
    ROLLMILL_TARGET static void find_children(const float* children, const float* below, double* residuals,
                                              std::int64_t count, std::int64_t* nodes, int fanout) {
        if constexpr (K > 0) {
            Group::Seen seen[together];
            for (std::int64_t i = 0; i < count; ++i) Group::look(children + nodes[i] * K, residuals[i], &seen[i]);
            for (std::int64_t i = 0; i < count; ++i) {
                nodes[i] = nodes[i] * K + Group::pick(seen[i], &residuals[i]);
                ask_for_children(below, nodes[i], K);
            }
        } else {
            for (std::int64_t i = 0; i < count; ++i) {
                const std::int64_t first = nodes[i] * fanout;
                nodes[i] = first + Group::find(children + first, fanout, &residuals[i]);
                ask_for_children(below, nodes[i], fanout);
            }
        }
    }

    static void ask_for_children(const float* below, std::int64_t node, int fanout) {
        if (below == nullptr) return;
        for (int at = 0; at < fanout; at += line_floats) __builtin_prefetch(below + node * fanout + at);
    }

    static constexpr SumTreeKernels table{scattered<false>, range<false>, scattered<true>, range<true>, find};
};

// The default fanout's loops are unrolled.
const SumTreeKernels& table(int fanout) noexcept { return fanout == 16 ? Loops<16>::table : Loops<0>::table; }
