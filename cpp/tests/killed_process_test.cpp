// Processes killed at random moments: the others must go on, and nothing may be torn.
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "core/lane_ring.h"
#include "core/message_lanes.h"
#include "core/snapshot.h"
#include "core/sum_tree.h"
#include "shared_memory.h"

using rollmill::LaneRing;
using rollmill::MessageLanes;
using rollmill::Random;
using rollmill::SumTree;
using rollmill::Wait;
using rollmill::testing::SharedMemory;

namespace {

template <class Work>
pid_t start_child(Work&& work) {
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);  // a failed CHECK of the parent leaves no child behind
        work();
        std::_Exit(0);
    }
    return child;
}

void kill_and_reap(pid_t child) {
    CHECK(kill(child, SIGKILL) == 0);
    CHECK(waitpid(child, nullptr, 0) == child);
}

}  // namespace

TEST(killed_producers_leave_a_ring_that_works) {
    constexpr std::int64_t lanes = 3;
    SharedMemory memory(LaneRing::nbytes(lanes, 8));
    LaneRing ring(memory.data(), memory.size(), lanes, 8, true);
    std::mt19937 random(1);
    std::vector<std::int64_t> next(lanes, 0);
    const auto produce = [&](std::int64_t lane, std::int64_t from) {
        for (std::int64_t i = from;; ) {
            if (ring.put(lane, lane << 32 | i)) ++i;
            else ring.wait_for_space(lane, 1, 10.0);
        }
    };
    std::vector<pid_t> children;
    for (std::int64_t lane = 0; lane < lanes; ++lane) children.push_back(start_child([&] { produce(lane, 0); }));
    std::int64_t out[16];
    const auto drain_until = [&](double deadline) {
        do {
            ring.wait_for_words(1, 0.0005);
            const std::int64_t n = ring.take(out);
            for (std::int64_t i = 0; i < n; ++i) CHECK((out[i] & 0xffffffff) == next[static_cast<std::size_t>(out[i] >> 32)]++);
        } while (rollmill::monotonic_seconds() < deadline);
    };
    for (int round = 0; round < 60; ++round) {
        drain_until(rollmill::monotonic_seconds() + 1e-6 * static_cast<double>(random() % 2000));
        const auto victim = static_cast<std::size_t>(random() % lanes);
        kill_and_reap(children[victim]);
        // Exactly what it had put is delivered; its successor continues in the same lane.
        while (ring.wait_for_words(1, 0.0) == Wait::ready && ring.size() > 0) drain_until(0.0);
        const std::int64_t lane = static_cast<std::int64_t>(victim);
        drain_until(0.0);
        const std::int64_t from = next[victim] + static_cast<std::int64_t>(
            ring.lane(lane).tail.load() - ring.lane(lane).head.load());
        children[victim] = start_child([&] { produce(lane, from); });
        if (round % 10 == 9) {  // every lane is alive
            std::vector<std::int64_t> before = next;
            const double deadline = rollmill::monotonic_seconds() + 20.0;
            const auto all_advanced = [&] {
                for (std::size_t i = 0; i < before.size(); ++i)
                    if (next[i] == before[i]) return false;
                return true;
            };
            while (!all_advanced()) {
                CHECK(rollmill::monotonic_seconds() < deadline);
                drain_until(0.0);
            }
        }
    }
    for (const pid_t child : children) kill_and_reap(child);
}

TEST(a_producer_killed_before_it_rings_is_heard_by_the_next_look) {
    SharedMemory memory(LaneRing::nbytes(1, 8));
    LaneRing ring(memory.data(), memory.size(), 1, 8, true);
    // What such a producer leaves behind: a moved tail and no ring.
    const pid_t child = start_child([&] {
        usleep(20'000);
        ring.words(0)[0] = 42;
        ring.lane(0).tail.store(1);
    });
    const double start = rollmill::monotonic_seconds();
    while (ring.wait_for_words(1, 30.0) == Wait::interrupted) {
    }
    CHECK(rollmill::monotonic_seconds() - start < 20.0);  // a nap, not the timeout
    std::int64_t out;
    CHECK(ring.take({&out, 1}) == 1 && out == 42);
    CHECK(waitpid(child, nullptr, 0) == child);
}

TEST(killed_consumers_and_producers_leave_a_queue_that_works) {
    SharedMemory memory(MessageLanes::nbytes(2, 16));
    MessageLanes lanes(memory.data(), memory.size(), 2, 16, true);
    std::mt19937 random(2);
    const std::string text(30, 't');
    for (int round = 0; round < 60; ++round) {
        const pid_t producer = start_child([&] {
            const std::int64_t lane = lanes.claim();
            CHECK(lane >= 0);  // lanes of the dead are found again
            for (std::int64_t i = 0;; ++i)
                while (!(i % 3 == 0 ? lanes.put(lane, std::string_view(text)) : lanes.put(lane, i)))
                    lanes.wait_for_space(lane, 5, 10.0);
        });
        const pid_t consumer = start_child([&] {
            for (;;) {
                std::vector<std::int64_t> words;
                MessageLanes::Sink sink{.words = &words, .limit = 7};
                lanes.take_waiting(sink, 10.0);
            }
        });
        usleep(static_cast<useconds_t>(random() % 1500));
        kill_and_reap(round % 2 == 0 ? consumer : producer);
        // The survivor's partner is this process now.
        if (round % 2 == 0) {
            std::vector<std::int64_t> words;
            MessageLanes::Sink sink{.words = &words, .limit = 100};
            const double deadline = rollmill::monotonic_seconds() + 20.0;
            while (sink.count == 0) {
                CHECK(rollmill::monotonic_seconds() < deadline);
                lanes.take_waiting(sink, 1.0);
            }
            for (std::size_t at = 0; at < words.size();) {
                const rollmill::Message message = rollmill::read_message(words.data() + at);
                CHECK(message.is_integer ? message.integer % 3 != 0 : message.bytes == text);
                at += message.num_words;
            }
        }
        kill_and_reap(round % 2 == 0 ? producer : consumer);
    }
}

TEST(a_writer_killed_in_the_middle_is_noticed_until_the_next_write) {
    constexpr std::size_t size = 1 << 16;
    SharedMemory memory(size + 64);
    auto* header = static_cast<std::int64_t*>(memory.data());
    auto* block = static_cast<std::byte*>(memory.data()) + 64;
    std::mt19937 random(3);
    std::vector<std::byte> out(size);
    std::int64_t torn = 0;
    // On a busy machine most writers are killed before they begin.
    for (int round = 0; round < 40 || (torn == 0 && round < 4000); ++round) {
        const pid_t writer = start_child([&] {
            std::vector<std::byte> source(size);
            for (int i = 0;; ++i) {
                std::fill(source.begin(), source.end(), static_cast<std::byte>(i));
                rollmill::snapshot_write(header, block, source, i & 255);
            }
        });
        usleep(200 + static_cast<useconds_t>(random() % 800));
        kill_and_reap(writer);
        const std::int64_t version = rollmill::snapshot_read(header, out, block);
        if (version == rollmill::torn) {
            ++torn;
            std::vector<std::byte> source(size, std::byte{7});
            rollmill::snapshot_write(header, block, source, 7);
            CHECK(rollmill::snapshot_read(header, out, block) == 7);
        }
        for (const std::byte value : out) CHECK(value == out[0]);
    }
    CHECK(torn > 0);  // else this test has tested nothing
}

TEST(a_sum_tree_whose_holder_was_killed_is_repaired_by_the_next) {
    constexpr std::int64_t capacity = 1000;
    SharedMemory memory(SumTree::nbytes(capacity, {.minimum = true}));
    SumTree tree = SumTree::initialise(memory.data(), memory.size(), capacity, {.minimum = true});
    tree.hold().fill(0, capacity, 1.0f);
    const pid_t child = start_child([&] {
        auto held = tree.hold();
        held.fill(0, 500, 3.0f);
        // What one leaves behind that dies before all parents are recomputed; the last in memory are the minimums.
        auto* words = static_cast<float*>(memory.data());
        for (std::size_t i = memory.size() / 4 - 32; i < memory.size() / 4; ++i) words[i] = 77.0f;
        kill(getpid(), SIGKILL);
        pause();
    });
    CHECK(waitpid(child, nullptr, 0) == child);
    CHECK(tree.repairs() == 0);
    for (int again = 0; again < 2; ++again) {
        auto held = tree.hold();
        CHECK(held.verify());
        CHECK(held.total() == 2000.0f && held.minimum() == 1.0f && held.maximum() == 3.0f);
        CHECK(tree.repairs() == 1);
    }
}

TEST(killed_users_of_a_sum_tree_leave_it_whole) {
    constexpr std::int64_t capacity = 20'000;
    SharedMemory memory(SumTree::nbytes(capacity, {}));
    SumTree tree = SumTree::initialise(memory.data(), memory.size(), capacity, {});
    tree.hold().fill(0, capacity, 1.0f);
    SharedMemory counter(sizeof(std::atomic<int>));
    auto& batches = *new (counter.data()) std::atomic<int>{0};
    std::mt19937 random(4);
    const auto work = [&](std::uint64_t seed) {
        Random stream{seed, 0};
        std::vector<std::int64_t> leaves(2000);
        std::vector<float> priorities(2000);
        for (;; batches.fetch_add(1)) {
            auto held = tree.hold();
            CHECK(held.draw(stream, false, leaves, priorities));
            for (float& p : priorities) p = static_cast<float>(stream.uniform());
            held.assign(leaves, priorities);
        }
    };
    for (std::uint64_t round = 0; round < 60 || (tree.repairs() == 0 && round < 600); ++round) {
        batches.store(0);
        const pid_t victim = start_child([&] { work(2 * round); });
        const pid_t other = start_child([&] { work(2 * round + 1); });
        const double deadline = rollmill::monotonic_seconds() + 20.0;
        while (batches.load() < 2) {
            CHECK(rollmill::monotonic_seconds() < deadline);
            usleep(100);
        }
        usleep(static_cast<useconds_t>(random() % 1000));
        kill_and_reap(victim);
        CHECK(tree.hold().verify());  // while the other runs
        kill_and_reap(other);
        CHECK(tree.hold().verify());
    }
    CHECK(tree.repairs() > 0);  // else this test has tested nothing
}
