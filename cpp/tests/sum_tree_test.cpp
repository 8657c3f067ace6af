#include "core/sum_tree.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "core/powers.h"
#include "shared_memory.h"

using rollmill::Instructions;
using rollmill::Random;
using rollmill::SumTree;
using rollmill::testing::SharedMemory;

namespace {

struct Tree {
    explicit Tree(std::int64_t capacity, SumTree::Options options = {})
        : memory(SumTree::nbytes(capacity, options)),
          tree(SumTree::initialise(memory.data(), memory.size(), capacity, options)) {}
    SharedMemory memory;
    SumTree tree;
};

double sum_of_leaves(const SumTree& tree) {
    double sum = 0.0;
    for (std::int64_t leaf = 0; leaf < tree.capacity(); ++leaf) sum += static_cast<double>(tree.priority(leaf));
    return sum;
}

std::vector<float> random_priorities(std::mt19937& random, std::int64_t n) {
    std::vector<float> priorities(static_cast<std::size_t>(n));
    for (float& p : priorities) p = random() % 5 == 0 ? 0.0f : std::ldexp(static_cast<float>(random() % 1000), -10);
    return priorities;
}

std::vector<std::int64_t> random_leaves(std::mt19937& random, std::int64_t n, std::int64_t capacity) {
    std::vector<std::int64_t> leaves(static_cast<std::size_t>(n));
    for (std::int64_t& leaf : leaves) leaf = static_cast<std::int64_t>(random()) % capacity;
    return leaves;
}

}  // namespace

TEST(sum_tree_instruction_sets_compute_the_same_bits) {
    std::mt19937 random(1);
    for (const int fanout : {2, 4, 8, 16, 32, 64, 128, 256}) {
        for (const std::int64_t capacity : {1, 3, 16, 255, 4097}) {
            std::vector<std::unique_ptr<Tree>> trees;
            for (const Instructions most : {Instructions::scalar, Instructions::avx2, Instructions::avx512}) {
                trees.push_back(std::make_unique<Tree>(capacity, SumTree::Options{.fanout = fanout, .minimum = true}));
                trees.back()->tree.use_instructions(most);
            }
            for (const std::int64_t n : {1, 50, 700}) {
                const auto leaves = random_leaves(random, n, capacity);
                const auto priorities = random_priorities(random, n);
                std::vector<std::vector<std::int64_t>> drawn;
                std::vector<float> totals;
                for (auto& t : trees) {
                    auto held = t->tree.hold();
                    held.assign(leaves, priorities);
                    CHECK(held.verify());
                    Random stream{7, 0};
                    drawn.emplace_back(333);
                    std::vector<float> values(333);
                    totals.push_back(held.total());
                    if (!held.draw(stream, false, drawn.back(), values)) continue;
                    for (std::size_t i = 0; i < values.size(); ++i) {
                        CHECK(values[i] > 0.0f);
                        CHECK(values[i] == t->tree.priority(drawn.back()[i]));
                    }
                }
                for (std::size_t i = 1; i < trees.size(); ++i) {
                    CHECK(totals[i] == totals[0]);
                    CHECK(drawn[i] == drawn[0]);
                    trees[i]->tree.use_instructions(Instructions::scalar);
                    CHECK(trees[i]->tree.hold().verify());
                    trees[i]->tree.use_instructions(i == 1 ? Instructions::avx2 : Instructions::avx512);
                }
            }
        }
    }
}

TEST(sum_tree_is_the_same_at_another_address) {
    Tree a(1000);
    a.tree.hold().fill(3, 500, 0.25f);
    SharedMemory other(a.memory.size());
    std::memcpy(other.data(), a.memory.data(), other.size());
    SumTree b = SumTree::attach(other.data(), other.size());
    CHECK(b.capacity() == 1000 && b.fanout() == 16 && !b.has_minimum());
    CHECK(b.hold().verify());
    CHECK(b.hold().total() == a.tree.hold().total());
    CHECK_THROWS(SumTree::attach(other.data(), other.size() - 64));
    CHECK_THROWS(SumTree::attach(static_cast<std::byte*>(other.data()) + 64, other.size() - 64));
}

TEST(sum_tree_several_operations_are_one_step) {
    Tree t(256);
    t.tree.hold().fill(0, 256, 1.0f);
    std::atomic<bool> stop = false;
    std::thread writer([&] {
        while (!stop.load()) {
            auto held = t.tree.hold();
            held.fill(0, 128, 0.0f);
            held.fill(128, 128, 2.0f);
            held.fill(0, 128, 1.0f);
            held.fill(128, 128, 1.0f);
        }
    });
    for (int i = 0; i < 2000; ++i) CHECK(t.tree.hold().total() == 256.0f);
    stop.store(true);
    writer.join();
}

TEST(sum_tree_holds_its_invariants_after_threads) {
    constexpr std::int64_t capacity = 5000;
    constexpr std::int64_t rows = 50;
    Tree t(capacity, {.minimum = true});
    t.tree.hold().fill(0, capacity, 1.0f);
    std::vector<std::int64_t> generations(capacity / rows, 0);
    std::vector<std::thread> threads;
    for (std::uint64_t seed = 0; seed < 4; ++seed)
        threads.emplace_back([&, seed] {
            std::mt19937 random(static_cast<unsigned>(seed));
            Random stream{seed, 0};
            std::int64_t leaves[64];
            std::int64_t seen[64];
            float priorities[64];
            SumTree view = t.tree;
            for (int i = 0; i < 400; ++i) {
                if (seed == 0) {  // the inserter: invisible, another generation, written, visible
                    const std::int64_t slot = static_cast<std::int64_t>(random() % generations.size());
                    auto& generation = generations[static_cast<std::size_t>(slot)];
                    view.hold().fill(slot * rows, rows, 0.0f);
                    std::atomic_ref(generation).fetch_add(1);
                    for (std::int64_t row = 0; row < rows; ++row) CHECK(view.priority(slot * rows + row) == 0.0f);
                    auto held = view.hold();
                    held.fill(slot * rows, rows, held.maximum());
                    continue;
                }
                {
                    auto held = view.hold();
                    CHECK(held.draw(stream, i % 2 == 0, leaves, priorities));
                    for (const float p : priorities) CHECK(p > 0.0f);
                    CHECK(held.minimum() > 0.0f && held.minimum() <= *std::min_element(priorities, priorities + 64));
                }
                for (int j = 0; j < 64; ++j)
                    seen[j] = std::atomic_ref(generations[static_cast<std::size_t>(leaves[j] / rows)]).load();
                for (float& p : priorities) p = std::ldexp(static_cast<float>(random() % 1000 + 1), -10);
                view.hold().assign_if_alive(leaves, priorities, seen, generations.data(), rows);
            }
        });
    for (std::thread& thread : threads) thread.join();
    auto held = t.tree.hold();
    CHECK(held.verify());
    CHECK(std::abs(static_cast<double>(held.total()) - sum_of_leaves(t.tree)) < 1e-6 * sum_of_leaves(t.tree));
}

TEST(sum_tree_a_lock_that_is_kept_ends_the_wait) {
    Tree t(16);
    auto held = t.tree.hold();
    std::thread waiter([&] {
        SumTree view = t.tree;
        CHECK_THROWS(view.hold(0.05));
        CHECK_THROWS(view.hold(0.0));
    });
    waiter.join();
}

TEST(sum_tree_skips_late_updates_of_what_has_changed_since) {
    Tree t(12, {});
    std::vector<std::int64_t> current = {5, 6, 7};  // of leaves 0..3, 4..7, 8..11
    t.tree.hold().fill(0, 12, 1.0f);
    t.tree.hold().fill(6, 1, 0.0f);  // being written
    const std::vector<std::int64_t> leaves = {0, 5, 6, 11, 3}, drawn = {5, 6, 6, 8, 4};
    const auto update = [&](float priority) {
        const std::vector<float> priorities(leaves.size(), priority);
        return t.tree.hold().assign_if_alive(leaves, priorities, drawn, current.data(), 4);
    };
    CHECK(update(9.0f) == 3);
    for (std::int64_t leaf = 0; leaf < 12; ++leaf)
        CHECK(t.tree.priority(leaf) == (leaf == 6 ? 0.0f : leaf == 0 || leaf == 5 ? 9.0f : 1.0f));
    CHECK(t.tree.hold().verify());
    current = {6, 7, 8};
    CHECK(update(99.0f) == 4 && t.tree.hold().maximum() == 99.0f);  // the last leaf is of generation 8 now
}

TEST(sum_tree_refuses_what_is_no_priority) {
    constexpr float infinity = std::numeric_limits<float>::infinity();
    for (const float bad : {std::nanf(""), infinity, -infinity, -1.0f, -1e-45f, 0x1.8p64f}) {
        const float priorities[] = {0.0f, 0x1p64f, -0.0f, bad, bad};
        CHECK(rollmill::first_invalid_priority(priorities) == 3);
        CHECK(rollmill::first_invalid_priority(std::span(priorities).first(3)) == -1);
    }
}

TEST(powers_are_within_an_ulp) {
    std::mt19937 random(2);
    std::uniform_real_distribution<float> exponents(-40.0f, 40.0f);
    std::vector<float> x(1001);
    std::vector<float> y(x.size());
    for (const double exponent : {0.0, 0.4, 0.6, 1.0, 2.0, -0.4, -1.0}) {
        for (float& v : x) v = std::exp2(exponents(random)) * (random() % 2 == 0 ? 1.0f : -1.0f);
        rollmill::powers(x, {.offset = 1e-6, .scale = 3.0, .exponent = exponent}, y);
        for (std::size_t i = 0; i < x.size(); ++i) {
            const double exact = std::pow((std::abs(static_cast<double>(x[i])) + 1e-6) * 3.0, exponent);
            CHECK(std::abs(static_cast<double>(y[i]) - exact) <= 0.6e-7 * exact);
        }
    }
    const float infinity = std::numeric_limits<float>::infinity();
    const float ends[] = {0.0f, infinity, -infinity, std::nanf("")};
    const float expected[3][3] = {{0.0f, infinity, infinity}, {1.0f, 1.0f, 1.0f}, {infinity, 0.0f, 0.0f}};
    for (int k = 0; k < 3; ++k) {
        rollmill::powers(ends, {.exponent = std::vector<double>{0.1, 0.0, -0.1}[static_cast<std::size_t>(k)]}, y);
        for (std::size_t i = 0; i < 3; ++i) CHECK(y[i] == expected[k][i]);
        CHECK(std::isnan(y[3]));
    }
}
