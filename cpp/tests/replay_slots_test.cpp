// Replay over slots: what a batch reads is of one moment, however fast slots are written over.
#include "core/replay_slots.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "tests/check.h"

namespace rollmill {
namespace {

constexpr std::int64_t steps = 3, rows = 2, slots_of_writer = 3, n_step = 2, history = 1;
constexpr std::int64_t episode = 7;  // steps; a masked row follows

// Slots of several writers, each with one group, whose every number is the ticket of the step that it belongs to.
struct World {
    explicit World(std::int64_t writers, std::int64_t steps_of_window = 0, bool rows_take_turns = false,
                   std::size_t policies = 1)
        : num_slots(writers * slots_of_writer), window(steps_of_window), has_turns(rows_take_turns),
          num_policies(policies), tree_memory(policies * (tree_nbytes() + SumTree::alignment)), policy(cells()),
          reward(at_step()), terminated(at_step()), truncated(at_step()), valid(at_step()), reset(cells()), acts(cells()),
          shown(cells()),
          generation(static_cast<std::size_t>(num_slots)), next(generation.size(), ReplaySlots::no_link), previous(next) {
        void* start = tree_memory.data();
        std::size_t space = tree_memory.size();
        for (std::size_t p = 0; p < num_policies; ++p) {
            memory.push_back(std::align(SumTree::alignment, tree_nbytes(), start, space));
            SumTree::initialise(start, tree_nbytes(), num_slots * steps * rows, {});
            start = static_cast<std::byte*>(start) + tree_nbytes();
            space -= tree_nbytes();
        }
    }

    std::size_t at_step() const { return static_cast<std::size_t>(num_slots * steps * rows); }
    std::size_t cells() const { return static_cast<std::size_t>(num_slots * (steps + 1) * rows); }
    std::size_t tree_nbytes() const { return SumTree::nbytes(num_slots * steps * rows, {}); }
    SumTree tree(std::size_t of_policy = 0) const { return SumTree::attach(memory[of_policy], tree_nbytes()); }
    ReplaySlots replay() {
        std::vector<SumTree> trees;
        for (std::size_t p = 0; p < num_policies; ++p) trees.push_back(tree(p));
        return ReplaySlots(trees, {num_slots, steps, rows, n_step, has_turns ? 0 : history, window, 1},
                           {reward.data(), terminated.data(), truncated.data(), valid.data(), reset.data(),
                            generation.data(), next.data(), previous.data(), has_turns ? acts.data() : nullptr,
                            num_policies > 1 ? policy.data() : nullptr});
    }

    std::int64_t num_slots, window;
    bool has_turns;
    std::size_t num_policies;
    std::vector<std::byte> tree_memory;
    std::vector<void*> memory;  // of each tree
    std::vector<std::int16_t> policy;
    std::vector<float> reward;
    std::vector<std::uint8_t> terminated, truncated, valid, reset, acts;
    std::vector<std::int64_t> shown;  // ticket of each observation
    std::vector<std::int64_t> generation, next, previous;
};

template <class T>
void put(std::vector<T>& array, std::int64_t at, T value) {
    // As an environment would write, but so that ThreadSanitizer knows that the race is meant.
    std::atomic_ref<T>(array[static_cast<std::size_t>(at)]).store(value, std::memory_order_relaxed);
}

// Row b of writer w has tickets of its own: t * 64 + w * rows + b.
std::int64_t ticket(std::int64_t t, std::int64_t writer, std::int64_t row) { return t * 64 + writer * rows + row; }

// A whole number that float32 holds, however long the test takes.
float reward_of(std::int64_t t) { return static_cast<float>(t % 65536); }

bool terminates(std::int64_t t) { return t % (episode + 1) == episode - 1 && t / (episode + 1) % 2 == 0; }
bool truncates(std::int64_t t) { return t % (episode + 1) == episode - 1 && !terminates(t); }

// Where rows take turns: whether this row acts at x_t. A truncated episode shows all rows its final observation.
bool acts_at(std::int64_t t, std::int64_t row) {
    const std::int64_t in_episode = t % (episode + 1);
    return in_episode == episode ? truncates(t - 1) : in_episode % rows == row;
}

// Where there are several policies: who plays a row, which changes with each episode; one of them has no tree.
std::int16_t policy_at(const World& world, std::int64_t t, std::int64_t row) {
    const auto players = static_cast<std::int64_t>(world.num_policies) + 1;
    return static_cast<std::int16_t>((t / (episode + 1) + row) % players);
}

void write(World& world, std::int64_t writer, const std::atomic<bool>& stop) {
    ReplaySlots replay = world.replay();
    std::vector<std::int64_t> pending(rows, 0), counts(world.num_policies);
    std::int64_t slot = writer * slots_of_writer, used = 1, step = 0;
    const auto show = [&](std::int64_t of, std::int64_t at, std::int64_t t) {
        for (std::int64_t row = 0; row < rows; ++row) {
            const std::int64_t cell = (of * (steps + 1) + at) * rows + row;
            const std::int64_t first = world.has_turns ? row : 0;
            put(world.shown, cell, ticket(t, writer, row));
            put(world.reset, cell, static_cast<std::uint8_t>(t % (episode + 1) == first));
            put(world.acts, cell, static_cast<std::uint8_t>(acts_at(t, row)));
            put(world.policy, cell, policy_at(world, t, row));
        }
    };
    replay.begin(slot, -1);
    show(slot, 0, 0);
    for (std::int64_t t = 0; !stop.load() && t < 100'000'000; ++t) {
        for (std::int64_t row = 0; row < rows; ++row) {
            const std::int64_t at = (slot * steps + step) * rows + row;
            const bool is_masked = t % (episode + 1) == episode;
            put(world.reward, at, reward_of(t));
            put(world.valid, at, static_cast<std::uint8_t>(!is_masked && (!world.has_turns || acts_at(t, row))));
            put(world.terminated, at, static_cast<std::uint8_t>(terminates(t)));
            put(world.truncated, at, static_cast<std::uint8_t>(truncates(t)));
        }
        show(slot, step + 1, t + 1);
        replay.commit(slot, step, pending.data(), counts.data());
        for (std::size_t p = 0; p < world.num_policies; ++p) {
            std::int64_t expected = 0;
            for (std::int64_t row = 0; row < rows; ++row)
                expected += world.valid[static_cast<std::size_t>((slot * steps + step) * rows + row)] != 0 &&
                            (world.num_policies == 1 || policy_at(world, t, row) == static_cast<std::int16_t>(p));
            CHECK(counts[p] == expected);
        }
        if (++step < steps) continue;
        const std::int64_t full = slot;
        slot = writer * slots_of_writer + used++ % slots_of_writer;
        if (used > slots_of_writer) replay.evict(slot);
        replay.begin(slot, full);
        show(slot, 0, t + 1);
        step = 0;
    }
}

std::byte* bytes(auto& array) { return reinterpret_cast<std::byte*>(array.data()); }

// A batch of `size` and what is copied into it.
struct Drawn {
    Drawn(World& world, std::int64_t window, std::size_t tree = 0)
        : leaf(size), then(size), x(cells(window)), x_then(size), stack(2 * x.size()), weight(size), reward(size),
          discount(size), r(static_cast<std::size_t>(size * window)),
          batch(world.replay().shape(), leaf, weight, reward, discount, then, tree) {
        constexpr std::size_t word = sizeof(std::int64_t);
        const auto add = [&](auto& to, auto& from, const std::int64_t* index, std::int64_t times, std::size_t width) {
            batch.columns.push_back({bytes(to), bytes(from), index, times, width, width, false});
        };
        add(x, world.shown, batch.cells.data(), window + 1, word);
        if (window == 0) add(x_then, world.shown, batch.cells.data() + size, 1, word);
        else add(r, world.reward, batch.steps.data(), window, sizeof(float));
        if (world.has_turns) return;
        batch.stacks.push_back({bytes(stack), bytes(world.shown), batch.cells.data(), window + 1, 2, word, true});
    }
    bool draw(ReplaySlots& replay, Random& random) { return replay.sample(random, {}, {1.0, 1.0, 1e30}, 1, batch); }

    static constexpr std::int64_t size = 16;
    static std::size_t cells(std::int64_t window) { return static_cast<std::size_t>(size * (window + 1)); }

    std::vector<std::int64_t> leaf, then, x, x_then, stack;
    std::vector<float> weight, reward, discount, r;
    ReplaySlots::Batch batch;
};

// Draws until told to stop, and counts the samples that were overwritten while they were copied.
void sample(World& world, std::uint64_t seed, const std::atomic<bool>& stop, std::atomic<std::int64_t>& found) {
    ReplaySlots replay = world.replay();
    Random random{seed, 0};
    const std::size_t tree = seed % world.num_policies;
    Drawn drawn(world, 0, tree);
    while (!stop.load()) {
        if (!drawn.draw(replay, random)) continue;
        found += std::exchange(drawn.batch.redrawn, 0);
        const auto &x = drawn.x, &stack = drawn.stack;
        for (std::size_t i = 0; i < Drawn::size; ++i) {
            if (world.num_policies > 1)
                CHECK(policy_at(world, x[i] / 64, x[i] % 64 % rows) == static_cast<std::int16_t>(tree));
            const std::int64_t t = x[i] / 64, in_episode = t % (episode + 1);
            const std::int64_t k = std::min(n_step, episode - in_episode);
            CHECK(in_episode < episode);
            CHECK(drawn.x_then[i] == x[i] + 64 * k);
            CHECK(drawn.reward[i] == reward_of(t) + (k == 1 ? 0.0f : reward_of(t + 1)));
            CHECK((drawn.discount[i] == 0.0f) == terminates(t + k - 1));
            const std::int64_t before = in_episode == 0 ? x[i] : x[i] - 64;
            CHECK(stack[2 * i + 1] == x[i] && stack[2 * i] == before);
            CHECK(drawn.weight[i] == 1.0f);
        }
    }
}

// The same of windows: one step of burn-in, one that is learned from, and one that its return needs.
void sample_windows(World& world, std::uint64_t seed, const std::atomic<bool>& stop, std::atomic<std::int64_t>& found) {
    constexpr std::int64_t window = 3;
    ReplaySlots replay = world.replay();
    Random random{seed, 0};
    Drawn drawn(world, window);
    while (!stop.load()) {
        if (!drawn.draw(replay, random)) continue;
        found += std::exchange(drawn.batch.redrawn, 0);
        const auto &x = drawn.x, &stack = drawn.stack;
        for (std::size_t i = 0; i < Drawn::size; ++i) {
            const std::int64_t first = x[i] / 64;
            for (std::size_t k = 0; k <= window; ++k) {
                const std::size_t at = k * Drawn::size + i;
                const std::int64_t t = first + static_cast<std::int64_t>(k);
                CHECK(x[at] == x[i] + 64 * static_cast<std::int64_t>(k));
                CHECK(stack[2 * at + 1] == x[at]);
                CHECK(stack[2 * at] == (t % (episode + 1) == 0 ? x[at] : x[at] - 64));
                CHECK(k == window || drawn.r[at] == reward_of(t));
            }
            const std::int64_t t = first + 1, in_episode = t % (episode + 1), then = drawn.then[i];
            const float reward = drawn.reward[i], discount = drawn.discount[i];
            if (in_episode == episode) {
                CHECK(reward == 0.0f && discount == 0.0f && then == 1);
                continue;
            }
            const std::int64_t k = std::min(n_step, episode - in_episode);
            CHECK(then == 1 + k);
            CHECK(reward == reward_of(t) + (k == 1 ? 0.0f : reward_of(t + 1)));
            CHECK((discount == 0.0f) == terminates(t + k - 1));
        }
    }
}

// Turns: of the rows that act at x_t, with the rewards of the steps at which they do not.
void sample_turns(World& world, std::uint64_t seed, const std::atomic<bool>& stop, std::atomic<std::int64_t>& found) {
    ReplaySlots replay = world.replay();
    Random random{seed, 0};
    Drawn drawn(world, 0);
    while (!stop.load()) {
        if (!drawn.draw(replay, random)) continue;
        found += std::exchange(drawn.batch.redrawn, 0);
        for (std::size_t i = 0; i < Drawn::size; ++i) {
            const std::int64_t x = drawn.x[i], t = x / 64, row = x % 64 % rows;
            CHECK(t % (episode + 1) < episode && acts_at(t, row));
            float reward = 0.0f;
            std::int64_t s = t, turns = 0;
            do {
                turns += acts_at(s, row);
                reward += reward_of(s);
                ++s;
            } while (s % (episode + 1) != episode && !(turns == n_step && acts_at(s, row)));
            CHECK(drawn.reward[i] == reward);
            CHECK((drawn.discount[i] == 0.0f) == terminates(s - 1));
            CHECK(drawn.x_then[i] == (terminates(s - 1) ? x : x + 64 * (s - t)));
            CHECK(drawn.weight[i] == 1.0f);
        }
    }
}

using Sample = void (*)(World&, std::uint64_t, const std::atomic<bool>&, std::atomic<std::int64_t>&);

void sample_while_slots_are_written_over(std::int64_t window, Sample sample_of_kind, bool has_turns = false,
                                          std::size_t policies = 1) {
    constexpr std::int64_t writers = 2, samplers = 2, enough = 200;
    World world(writers, window, has_turns, policies);
    std::atomic<bool> stop{false};
    std::atomic<std::int64_t> torn{0};
    std::vector<std::thread> threads;
    for (std::int64_t s = 0; s < samplers; ++s)
        threads.emplace_back([&, s] { sample_of_kind(world, static_cast<std::uint64_t>(s), stop, torn); });
    for (std::int64_t w = 0; w < writers; ++w) threads.emplace_back([&, w] { write(world, w, stop); });
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (torn < enough && std::chrono::steady_clock::now() < deadline)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    stop = true;
    for (auto& thread : threads) thread.join();
    for (std::size_t p = 0; p < policies; ++p) {
        SumTree tree = world.tree(p);
        auto held = tree.hold();
        CHECK(held.verify());
    }
    CHECK(torn >= enough);
}

TEST(samples_are_of_one_moment_while_slots_are_written_over) { sample_while_slots_are_written_over(0, sample); }

TEST(each_policy_draws_its_own_steps_while_slots_are_written_over) {
    sample_while_slots_are_written_over(0, sample, false, 2);
}

TEST(windows_are_of_one_moment_while_slots_are_written_over) { sample_while_slots_are_written_over(3, sample_windows); }

TEST(turns_are_of_one_moment_while_slots_are_written_over) {
    sample_while_slots_are_written_over(0, sample_turns, true);
}

}  // namespace
}  // namespace rollmill
