// How every replay draws a batch while others write to it: look at the tree under its lock, copy without the lock, and
// draw again what was overwritten in the meantime.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "core/priorities.h"
#include "core/sum_tree.h"

namespace rollmill {

struct DrawRule {
    double beta = 0.0;  // exponent of the importance weights
    Weights weights = Weights::ones;
    bool stratified = false;
};

// An n-step return (Sutton 1988): the discounted rewards so far, and the factor of the value that follows them.
struct Return {
    double reward = 0.0;
    double discount = 1.0;

    void add(double next_reward, double gamma, bool terminated) noexcept {
        reward += discount * next_reward;
        discount = terminated ? 0.0 : discount * gamma;
    }
};

// An array of a batch, [times, size, bytes], and its source: entry (t, i) is a copy of the `bytes` bytes at
// from + index[t, i] * stride, and is left as it is where the index is negative.
struct Column {
    std::byte* to;
    const std::byte* from;
    const std::int64_t* index;
    std::int64_t times;
    std::size_t bytes;
    std::size_t stride;
    bool prefetched;  // the sources are in the cache already
};

// Arrays that batches are drawn into, again and again; used by one thread at a time.
struct DrawnBatch {
    std::span<std::int64_t> leaves;
    std::span<float> weights;
    std::vector<Column> columns;
    // The samples that are still to be drawn: at first all of them, then those that were overwritten while they were
    // copied.
    std::vector<std::int64_t> pending;
    std::int64_t redrawn = 0;  // how many were overwritten, in all draws

    std::int64_t size() const noexcept { return std::ssize(leaves); }

    // Copies the pending entries of all columns. What arrives may be torn, but it is no data race.
    void copy_pending() const noexcept;
};

// Draws a leaf for each pending sample, and calls `found(leaf)` early, so that its record can be fetched.
template <class Found>
void find_pending(SumTree& tree, SumTree::Held& held, Random& random, bool stratified, DrawnBatch& batch,
                  Found&& found) {
    constexpr std::size_t block = 64;
    const double mass = static_cast<double>(held.total());
    double residuals[block];
    std::int64_t leaves[block];
    for (std::size_t start = 0; start < batch.pending.size(); start += block) {
        const std::size_t count = std::min(block, batch.pending.size() - start);
        const std::span samples(&batch.pending[start], count);
        for (std::size_t i = 0; i < count; ++i) {
            const double u = random.uniform(), part = static_cast<double>(samples[i]);
            residuals[i] = mass * (stratified ? (part + u) / static_cast<double>(batch.size()) : u);
        }
        held.find({residuals, count}, {leaves, count});
        for (std::size_t i = 0; i < count; ++i) {
            batch.leaves[samples[i]] = leaves[i];
            batch.weights[samples[i]] = tree.priority(leaves[i]);
            found(leaves[i]);
        }
    }
}

// Fills a batch, which is not empty; false, with nothing to be read, when there is nothing to draw. A Source knows what
// the leaves stand for:
//
//   begin_look(held)      the tree's lock has been acquired;
//   found(leaf)           a leaf was drawn;
//   end_look()            notes the generations of the pending leaves; returns the number of items;
//   expects_items()       the tree is empty: whether to wait_for_items(), without the lock, and look again;
//   read()                copies what the pending leaves stand for;
//   keep_overwritten()    removes those from `pending` that were not overwritten until now.
template <class Source>
bool draw_batch(SumTree& tree, Random& random, const DrawRule& rule, DrawnBatch& batch, Source&& source) {
    // After so many rounds, each of which read something that was overwritten, the lock is kept while reading.
    constexpr int unlocked_rounds = 32;
    batch.pending.resize(batch.leaves.size());
    std::iota(batch.pending.begin(), batch.pending.end(), std::int64_t{0});
    Population population{};
    for (int round = 0; !batch.pending.empty(); ++round) {
        {
            // One look: sum, priorities, generations and counts are of one moment.
            auto held = tree.hold();
            source.begin_look(held);
            population.total = static_cast<double>(held.total());
            if (population.total > 0.0) {
                find_pending(tree, held, random, rule.stratified, batch, [&](auto leaf) { source.found(leaf); });
                population.num_items = source.end_look();
                // Of all rounds: an earlier one may have drawn a lower priority than any that is left.
                const double least = tree.has_minimum() ? static_cast<double>(held.minimum()) : 0.0;
                population.least = population.least > 0.0 ? std::min(population.least, least) : least;
                if (round >= unlocked_rounds) {
                    source.read();
                    break;
                }
            } else if (!source.expects_items()) {
                return false;
            }
        }
        if (!(population.total > 0.0)) {
            source.wait_for_items();
            continue;
        }
        source.read();
        source.keep_overwritten();
        batch.redrawn += std::ssize(batch.pending);
    }
    weigh(batch.weights, rule.weights, rule.beta, population, batch.weights);
    return true;
}

}  // namespace rollmill
