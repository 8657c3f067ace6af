#include "core/lane_ring.h"

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "shared_memory.h"

using rollmill::LaneRing;
using rollmill::Wait;
using rollmill::testing::SharedMemory;

namespace {

struct Ring {
    Ring(std::int64_t lanes, std::int64_t capacity)
        : memory(LaneRing::nbytes(lanes, capacity)), ring(memory.data(), memory.size(), lanes, capacity, true) {}
    SharedMemory memory;
    LaneRing ring;
};

}  // namespace

TEST(lane_ring_keeps_the_order_of_a_lane_across_its_end) {
    Ring r(2, 5);  // storage of 8: the wrap and the capacity differ
    std::int64_t next_in = 0;
    std::int64_t next_out = 0;
    for (int round = 0; round < 50; ++round) {
        while (r.ring.put(1, next_in)) ++next_in;
        CHECK(r.ring.size() == 5);
        std::int64_t out[3];
        const std::int64_t n = r.ring.take(std::span(out).first(1 + round % 3));
        CHECK(n == 1 + round % 3);
        for (std::int64_t i = 0; i < n; ++i) CHECK(out[i] == next_out++);
    }
}

TEST(lane_ring_serves_the_lanes_in_turn) {
    Ring r(3, 4);
    for (std::int64_t lane = 0; lane < 3; ++lane)
        for (std::int64_t i = 0; i < 4; ++i) CHECK(r.ring.put(lane, lane));
    std::vector<std::int64_t> order;
    std::int64_t out;
    while (r.ring.take({&out, 1}) == 1) order.push_back(out);
    CHECK((order == std::vector<std::int64_t>{0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2}));
}

TEST(lane_ring_refuses_memory_that_is_not_its_own) {
    const std::size_t size = LaneRing::nbytes(2, 8);
    SharedMemory memory(size + 64);
    CHECK_THROWS(LaneRing(memory.data(), size, 2, 8, false));      // never created
    CHECK_THROWS(LaneRing(memory.data(), size - 1, 2, 8, true));   // too small
    CHECK_THROWS(LaneRing(static_cast<char*>(memory.data()) + 8, size, 2, 8, true));
    LaneRing created(memory.data(), size, 2, 8, true);
    CHECK(created.put(0, 7));
    LaneRing attached(memory.data(), size, 2, 8, false);
    std::int64_t out;
    CHECK(attached.take({&out, 1}) == 1 && out == 7);
    CHECK_THROWS(LaneRing(memory.data(), size, 1, 8, false));
    CHECK_THROWS(LaneRing(memory.data(), size, 2, 7, false));
    static_cast<std::uint32_t*>(memory.data())[2] = 99;  // the version
    CHECK_THROWS(LaneRing(memory.data(), size, 2, 8, false));
    CHECK_THROWS(LaneRing::nbytes(0, 8));
    CHECK_THROWS(LaneRing::nbytes(1, 0));
    CHECK_THROWS(LaneRing::nbytes(std::int64_t{1} << 40, 8));
}

TEST(lane_ring_waits_end_at_the_timeout_and_by_wake) {
    Ring r(1, 2);
    CHECK(r.ring.wait_for_words(1, 0.0) == Wait::timed_out);
    const double start = rollmill::monotonic_seconds();
    CHECK(r.ring.wait_for_words(1, 0.15) == Wait::timed_out);
    CHECK(rollmill::monotonic_seconds() - start >= 0.15);
    r.ring.wake();
    CHECK(r.ring.wait_for_words(1, 100.0) == Wait::woken);
    CHECK(r.ring.wait_for_words(1, 0.0) == Wait::timed_out);  // once
    std::thread other([&] { r.ring.wake(); });
    CHECK(r.ring.wait_for_words(1, 100.0) == Wait::woken);
    other.join();
    CHECK(r.ring.put(0, 1) && r.ring.put(0, 2));
    CHECK(r.ring.wait_for_space(0, 1, 0.01) == Wait::timed_out);
}

TEST(lane_ring_wakes_a_sleeping_consumer) {
    // Without the ring each round would take a whole nap, and all of them several minutes.
    Ring there(1, 1);
    Ring back(1, 1);
    constexpr std::int64_t rounds = 2000;
    const auto receive = [](LaneRing& ring) {
        std::int64_t out;
        while (ring.take({&out, 1}) == 0) CHECK(ring.wait_for_words(1, 30.0) == Wait::ready);
        return out;
    };
    const double start = rollmill::monotonic_seconds();
    std::thread other([&] {
        for (std::int64_t i = 0; i < rounds; ++i) CHECK(back.ring.put(0, receive(there.ring) + 1));
    });
    for (std::int64_t i = 0; i < rounds; ++i) {
        CHECK(there.ring.put(0, i));
        CHECK(receive(back.ring) == i + 1);
    }
    other.join();
    CHECK(rollmill::monotonic_seconds() - start < 0.5 * rounds * LaneRing::max_nap_seconds);
}

TEST(lane_ring_wakes_a_consumer_of_several_once_they_are_there) {
    constexpr std::int64_t producers = 3;
    constexpr std::int64_t rounds = 3000;
    Ring there(producers, 1);
    std::vector<std::thread> threads;
    std::atomic<std::int64_t> round{0};
    const double start = rollmill::monotonic_seconds();
    // Each round takes a value of every producer; without the ring of the last one it would take a whole nap.
    for (std::int64_t lane = 0; lane < producers; ++lane)
        threads.emplace_back([&, lane] {
            for (std::int64_t i = 0; i < rounds; ++i) {
                while (round.load() < i) std::this_thread::yield();
                CHECK(there.ring.put(lane, i));
            }
        });
    for (std::int64_t i = 0; i < rounds; ++i) {
        CHECK(there.ring.wait_for_words(producers, 30.0) == Wait::ready);
        std::int64_t out[producers];
        CHECK(there.ring.take(out) == producers);
        for (const std::int64_t value : out) CHECK(value == i);
        round.store(i + 1);
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(rollmill::monotonic_seconds() - start < 0.05 * rounds * LaneRing::max_nap_seconds);
    // Too few: they are taken when the time is up, and wake() ends this wait like any other.
    CHECK(there.ring.put(0, 1));
    CHECK(there.ring.wait_for_words(2, 0.01) == Wait::timed_out);
    std::thread other([&] { there.ring.wake(); });
    CHECK(there.ring.wait_for_words(2, 100.0) == Wait::woken);
    other.join();
}

TEST(lane_ring_lets_a_consumer_of_many_sleep_until_they_are_there) {
    constexpr std::int64_t wanted = 50;
    Ring r(1, wanted);
    std::thread producer([&] {
        for (std::int64_t i = 0; i < wanted; ++i) {
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
            CHECK(r.ring.put(0, i));
        }
    });
    rusage before{};
    rusage after{};
    getrusage(RUSAGE_THREAD, &before);
    CHECK(r.ring.wait_for_words(wanted, 30.0) == Wait::ready);
    getrusage(RUSAGE_THREAD, &after);
    producer.join();
    CHECK(after.ru_nvcsw - before.ru_nvcsw < wanted / 2);  // naps, and not a wake-up for each word
}

TEST(lane_ring_rings_for_a_producer_that_waits_for_space) {
    Ring r(1, 4);
    LaneRing::Lane& lane = r.ring.lane(0);
    for (std::int64_t i = 0; i < 4; ++i) CHECK(r.ring.put(0, i));
    std::thread producer([&] { CHECK(r.ring.wait_for_space(0, 3, 30.0) == Wait::ready); });
    while (lane.space_wanted.load() == 0) std::this_thread::yield();
    std::int64_t out;
    CHECK(r.ring.take({&out, 1}) == 1 && r.ring.take({&out, 1}) == 1);
    CHECK(lane.space_bell.load() == 0);  // not yet what it wants
    CHECK(r.ring.take({&out, 1}) == 1);
    producer.join();
    CHECK(lane.space_bell.load() == 1);
}

TEST(lane_ring_carries_everything_once_from_many_threads) {
    constexpr std::int64_t lanes = 4;
    constexpr std::int64_t each = 20'000;
    Ring r(lanes, 16);  // small: both sides have to wait for each other all the time
    std::vector<std::thread> producers;
    for (std::int64_t lane = 0; lane < lanes; ++lane)
        producers.emplace_back([&, lane] {
            for (std::int64_t i = 0; i < each;) {
                if (r.ring.put(lane, lane * each + i)) ++i;
                else r.ring.wait_for_space(lane, 1, 10.0);
            }
        });
    std::vector<std::int64_t> next(lanes, 0);
    std::int64_t out[32];
    for (std::int64_t total = 0; total < lanes * each;) {
        const std::int64_t wanted = std::min(1 + total % 3, lanes * each - total);
        CHECK(r.ring.wait_for_words(wanted, 10.0) == Wait::ready);
        const std::int64_t n = r.ring.take(out);
        for (std::int64_t i = 0; i < n; ++i) {
            const std::int64_t lane = out[i] / each;
            CHECK(out[i] % each == next[static_cast<std::size_t>(lane)]++);
        }
        total += n;
    }
    for (std::thread& producer : producers) producer.join();
    CHECK(r.ring.size() == 0);
}
