// Replay over slots: what a batch reads is of one moment, however fast slots are written over.
#include "core/replay_slots.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "core/racing_copy.h"
#include "core/rows.h"
#include "tests/check.h"

namespace rollmill {
namespace {

constexpr std::int64_t steps = 3, rows = 2, slots_of_writer = 3, n_step = 2, history = 1;
constexpr std::int64_t episode = 7;  // steps; a masked row follows

// Slots of several writers, each with one group, whose every number is the ticket of the step that it belongs to.
struct World {
    explicit World(std::int64_t writers)
        : num_slots(writers * slots_of_writer),
          tree_memory(SumTree::nbytes(num_slots * steps * rows, {}) + SumTree::alignment),
          reward(at_step()), terminated(at_step()), truncated(at_step()), valid(at_step()), reset(cells()), shown(cells()),
          generation(static_cast<std::size_t>(num_slots)), next(generation.size(), ReplaySlots::no_link), previous(next) {
        void* start = tree_memory.data();
        std::size_t space = tree_memory.size();
        memory = std::align(SumTree::alignment, space - SumTree::alignment, start, space);
        SumTree::initialise(memory, space, num_slots * steps * rows, {});
    }

    std::size_t at_step() const { return static_cast<std::size_t>(num_slots * steps * rows); }
    std::size_t cells() const { return static_cast<std::size_t>(num_slots * (steps + 1) * rows); }
    SumTree tree() const { return SumTree::attach(memory, SumTree::nbytes(num_slots * steps * rows, {})); }
    ReplaySlots replay() {
        return ReplaySlots(tree(), {num_slots, steps, rows, n_step, history},
                           {reward.data(), terminated.data(), truncated.data(), valid.data(), reset.data(),
                            generation.data(), next.data(), previous.data()});
    }

    std::int64_t num_slots;
    std::vector<std::byte> tree_memory;
    void* memory;
    std::vector<float> reward;
    std::vector<std::uint8_t> terminated, truncated, valid, reset;
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

void write(World& world, std::int64_t writer, const std::atomic<bool>& stop) {
    ReplaySlots replay = world.replay();
    std::vector<std::int64_t> pending(rows, 0);
    std::int64_t slot = writer * slots_of_writer, used = 1, step = 0;
    const auto show = [&](std::int64_t of, std::int64_t at, std::int64_t t) {
        for (std::int64_t row = 0; row < rows; ++row) {
            const std::int64_t cell = (of * (steps + 1) + at) * rows + row;
            put(world.shown, cell, ticket(t, writer, row));
            put(world.reset, cell, static_cast<std::uint8_t>(t % (episode + 1) == 0));
        }
    };
    replay.begin(slot, -1);
    show(slot, 0, 0);
    for (std::int64_t t = 0; !stop.load() && t < 100'000'000; ++t) {
        for (std::int64_t row = 0; row < rows; ++row) {
            const std::int64_t at = (slot * steps + step) * rows + row;
            const std::int64_t in_episode = t % (episode + 1);
            put(world.reward, at, reward_of(t));
            put(world.valid, at, static_cast<std::uint8_t>(in_episode != episode));
            put(world.terminated, at, static_cast<std::uint8_t>(in_episode == episode - 1 && t % 2 == 0));
            put(world.truncated, at, static_cast<std::uint8_t>(in_episode == episode - 1 && t % 2 == 1));
        }
        show(slot, step + 1, t + 1);
        replay.commit(slot, step, pending.data());
        if (++step < steps) continue;
        const std::int64_t full = slot;
        slot = writer * slots_of_writer + used++ % slots_of_writer;
        if (used > slots_of_writer) replay.evict(slot);
        replay.begin(slot, full);
        show(slot, 0, t + 1);
        step = 0;
    }
}

// Draws until told to stop, and counts the samples that were torn, all of which must be found.
void sample(World& world, std::uint64_t seed, const std::atomic<bool>& stop, std::atomic<std::int64_t>& found) {
    constexpr std::int64_t count = 16;
    ReplaySlots replay = world.replay();
    Random random{seed, 0};
    std::vector<std::int64_t> leaf(count), generation(count), now(count), then(count), witness(3 * count);
    std::vector<float> priority(count), reward(count), discount(count);
    std::vector<std::int64_t> x(count), x_then(count), stack(2 * count);
    std::vector<std::uint8_t> torn(count);
    while (!stop.load()) {
        ReplaySlots::Look look;
        if (!replay.draw(random, count, false, {1.0, 1.0, 1e30},
                         {leaf.data(), generation.data(), priority.data(), now.data(), then.data(), reward.data(),
                          discount.data(), witness.data()},
                         &look))
            continue;
        const auto bytes = [](auto& array) { return reinterpret_cast<std::byte*>(array.data()); };
        gather_racing_rows(bytes(x), bytes(world.shown), now.data(), count, sizeof(std::int64_t));
        gather_racing_rows(bytes(x_then), bytes(world.shown), then.data(), count, sizeof(std::int64_t));
        replay.gather_stacks(bytes(stack), bytes(world.shown), now.data(), count, 2, sizeof(std::int64_t), true);
        found += replay.find_torn(witness.data(), count, torn.data());
        for (std::size_t i = 0; i < count; ++i) {
            if (torn[i] != 0) continue;
            const std::int64_t t = x[i] / 64, in_episode = t % (episode + 1);
            const std::int64_t k = std::min(n_step, episode - in_episode);
            CHECK(in_episode < episode);
            CHECK(x_then[i] == x[i] + 64 * k);
            CHECK(reward[i] == reward_of(t) + (k == 1 ? 0.0f : reward_of(t + 1)));
            CHECK((discount[i] == 0.0f) == (in_episode + k == episode && (t + k - 1) % 2 == 0));
            const std::int64_t before = in_episode == 0 ? x[i] : x[i] - 64;
            CHECK(stack[2 * i + 1] == x[i] && stack[2 * i] == before);
        }
    }
}

TEST(samples_are_of_one_moment_while_slots_are_written_over) {
    constexpr std::int64_t writers = 2, samplers = 2, enough = 200;
    World world(writers);
    std::atomic<bool> stop{false};
    std::atomic<std::int64_t> torn{0};
    std::vector<std::thread> threads;
    for (std::int64_t s = 0; s < samplers; ++s)
        threads.emplace_back([&, s] { sample(world, static_cast<std::uint64_t>(s), stop, torn); });
    for (std::int64_t w = 0; w < writers; ++w) threads.emplace_back([&, w] { write(world, w, stop); });
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (torn < enough && std::chrono::steady_clock::now() < deadline)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    stop = true;
    for (auto& thread : threads) thread.join();
    SumTree tree = world.tree();
    auto held = tree.hold();
    CHECK(held.verify());
    CHECK(torn >= enough);
}

}  // namespace
}  // namespace rollmill
