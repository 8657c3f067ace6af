// The loop with which every replay draws a batch.
#include "core/replay_draw.h"

#include <cmath>
#include <vector>

#include "shared_memory.h"

using rollmill::DrawnBatch;
using rollmill::Random;
using rollmill::SumTree;
using rollmill::Weights;
using rollmill::testing::SharedMemory;

namespace {

constexpr std::int64_t capacity = 8;

// Finds in each round that the samples at these places were overwritten, and notes what it read.
struct Scripted {
    void begin_look(SumTree::Held&) {}
    void found(std::int64_t) {}
    std::int64_t end_look() { return capacity; }
    bool expects_items() { return false; }
    void wait_for_items() {}
    void read() { reads.push_back(batch.pending); }
    void keep_overwritten() {
        batch.pending = reads.size() <= overwritten.size() ? overwritten[reads.size() - 1] : std::vector<std::int64_t>{};
    }

    DrawnBatch& batch;
    std::vector<std::vector<std::int64_t>> overwritten;
    std::vector<std::vector<std::int64_t>> reads = {};
};

struct Tree {
    Tree() : memory(SumTree::nbytes(capacity, {})), tree(SumTree::initialise(memory.data(), memory.size(), capacity, {})) {}
    SharedMemory memory;
    SumTree tree;
};

struct Batch {
    std::vector<std::int64_t> leaves = std::vector<std::int64_t>(4);
    std::vector<float> weights = std::vector<float>(4);
    DrawnBatch drawn{leaves, weights, {}, {}};
};

}  // namespace

TEST(overwritten_samples_are_drawn_again_and_weights_belong_to_the_whole_batch) {
    Tree t;
    for (std::int64_t leaf = 0; leaf < capacity; ++leaf) t.tree.hold().fill(leaf, 1, static_cast<float>(leaf + 1));
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
        Batch batch;
        Random random{seed, 0};
        Scripted source{batch.drawn, {{2}, {0, 2}}};
        const rollmill::DrawRule rule{.beta = 0.7, .weights = Weights::batch};
        CHECK(rollmill::draw_batch(t.tree, random, rule, batch.drawn, source));
        CHECK((source.reads == std::vector<std::vector<std::int64_t>>{{0, 1, 2, 3}, {2}, {0, 2}}));
        CHECK(batch.drawn.redrawn == 3);
        CHECK(random.counter == 7);
        const std::int64_t least = *std::min_element(batch.leaves.begin(), batch.leaves.end());
        for (std::size_t i = 0; i < 4; ++i) {
            const double expected = std::pow(static_cast<double>(batch.leaves[i] + 1) / static_cast<double>(least + 1), -0.7);
            CHECK(std::abs(static_cast<double>(batch.weights[i]) - expected) < 1e-6);
        }
    }
}

TEST(stratified_samples_stay_in_their_parts_when_they_are_drawn_again) {
    Tree t;
    t.tree.hold().fill(0, capacity, 1.0f);
    Batch batch;
    Random random{1, 0};
    Scripted source{batch.drawn, {{1, 3}, {3}}};
    CHECK(rollmill::draw_batch(t.tree, random, {.stratified = true}, batch.drawn, source));
    for (std::int64_t i = 0; i < 4; ++i) CHECK(batch.leaves[static_cast<std::size_t>(i)] / 2 == i);
}

TEST(a_batch_that_is_always_overwritten_is_read_under_the_lock) {
    Tree t;
    t.tree.hold().fill(0, capacity, 1.0f);
    Batch batch;
    Random random{1, 0};
    Scripted source{batch.drawn, std::vector<std::vector<std::int64_t>>(1000, {1})};
    CHECK(rollmill::draw_batch(t.tree, random, {}, batch.drawn, source));
    CHECK(source.reads.size() == 33);
}

TEST(nothing_is_drawn_from_an_empty_tree) {
    Tree t;
    Batch batch;
    Random random{1, 0};
    Scripted source{batch.drawn, {}};
    CHECK(!rollmill::draw_batch(t.tree, random, {}, batch.drawn, source));
    CHECK(source.reads.empty());
}
