#include "benchmarks/tree_alignment.h"

#include <algorithm>
#include <bit>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/futex.h"
#include "core/random.h"
#include "core/sum_tree.h"
#include "core/sum_tree_kernels.h"

namespace rollmill::benchmarks {
namespace {

constexpr std::size_t line_bytes = 64, line_floats = line_bytes / sizeof(float);

// One level: its nodes, zeros behind them, and the offset before them.
class Level {
   public:
    Level(std::size_t nodes, std::size_t fanout, std::size_t offset)
        : size_((nodes + fanout) / fanout * fanout + 2 * line_floats),
          memory_(static_cast<float*>(::operator new(size_ * sizeof(float), std::align_val_t{line_bytes}))),
          nodes_(memory_.get() + offset / sizeof(float)) {
        std::fill(memory_.get(), memory_.get() + size_, 0.0f);
    }
    float* nodes() const { return nodes_; }

   private:
    struct Free {
        void operator()(float* memory) const { ::operator delete(memory, std::align_val_t{line_bytes}); }
    };
    std::size_t size_;
    std::unique_ptr<float, Free> memory_;
    float* nodes_;
};

double median(std::vector<double>& times) {
    const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
    std::nth_element(times.begin(), middle, times.end());
    return *middle;
}

}  // namespace

TreeTimes measure_tree_alignment(const TreeAlignment& settings) {
    if (settings.capacity < 2 || settings.fanout < 2 || settings.fanout > SumTree::max_fanout ||
        !std::has_single_bit(static_cast<unsigned>(settings.fanout)) || settings.offset % sizeof(float) != 0 ||
        settings.offset >= line_bytes || settings.batch < 1 || settings.inserted < 1 ||
        settings.inserted > settings.capacity || !(settings.seconds > 0))
        throw std::invalid_argument("capacity, batch and seconds must be above 0 (a capacity of 1 is no tree), fanout a "
                                    "power of two from 2 to 256, offset a multiple of 4 below 64, and inserted 1 to "
                                    "the capacity");
    const auto fanout = static_cast<std::size_t>(settings.fanout);
    const int bits = std::countr_zero(fanout);
    std::vector<Level> levels;
    std::vector<std::int64_t> nodes;
    std::int64_t count = settings.capacity;
    for (;;) {
        nodes.push_back(count);
        levels.emplace_back(static_cast<std::size_t>(count), fanout, settings.offset);
        if (count == 1) break;
        count = (count + settings.fanout - 1) >> bits;
    }
    const SumTreeKernels& kernels = sum_tree_kernels(best_instructions(), settings.fanout);
    Random random{1, 0};
    for (std::int64_t leaf = 0; leaf < settings.capacity; ++leaf)
        levels[0].nodes()[leaf] = static_cast<float>(random.uniform() + 0.1);
    std::vector<const float*> views;
    for (std::size_t i = 0; i < levels.size(); ++i) {
        if (i > 0) kernels.sum_range(levels[i - 1].nodes(), levels[i].nodes(), 0, nodes[i], settings.fanout);
        views.push_back(levels[i].nodes());
    }
    const auto n = static_cast<std::size_t>(settings.batch);
    std::vector<double> residuals(n), find_times, update_times, insert_times;
    std::vector<std::int64_t> leaves(n);
    std::int64_t place = 0;
    const double end = monotonic_seconds() + settings.seconds;
    do {  // at least once, however busy the machine is
        const double total = static_cast<double>(levels.back().nodes()[0]);
        for (double& residual : residuals) residual = random.uniform() * total;
        const double start = monotonic_seconds();
        kernels.find(views.data(), static_cast<int>(levels.size()) - 1, residuals, leaves.data(), settings.fanout);
        const double found = monotonic_seconds();
        for (const std::int64_t leaf : leaves) levels[0].nodes()[leaf] = static_cast<float>(0.1 + 0.9 * (leaf % 7));
        for (std::size_t i = 1; i < levels.size(); ++i) {
            if (nodes[i] <= settings.batch)
                kernels.sum_range(levels[i - 1].nodes(), levels[i].nodes(), 0, nodes[i], settings.fanout);
            else
                kernels.sum_scattered(levels[i - 1].nodes(), levels[i].nodes(), leaves, static_cast<int>(i) * bits,
                                      settings.fanout);
        }
        find_times.push_back(1e6 * (found - start));
        const double updated = monotonic_seconds();
        const std::int64_t last = place + settings.inserted;
        for (const float priority : {0.0f, 1.0f}) {
            std::fill(levels[0].nodes() + place, levels[0].nodes() + last, priority);
            for (std::size_t i = 1; i < levels.size(); ++i) {
                const int shift = static_cast<int>(i) * bits;
                kernels.sum_range(levels[i - 1].nodes(), levels[i].nodes(), place >> shift, ((last - 1) >> shift) + 1,
                                  settings.fanout);
            }
        }
        insert_times.push_back(1e6 * (monotonic_seconds() - updated));
        place = last + settings.inserted > settings.capacity ? 0 : last;
        update_times.push_back(1e6 * (updated - found));
    } while (monotonic_seconds() < end);
    return {median(find_times), median(update_times), median(insert_times)};
}

}  // namespace rollmill::benchmarks
