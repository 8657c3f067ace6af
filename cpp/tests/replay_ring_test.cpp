#include "core/replay_ring.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "shared_memory.h"

using rollmill::Random;
using rollmill::ReplayRing;
using rollmill::RingShape;
using rollmill::testing::SharedMemory;

namespace {

constexpr std::size_t words = 129;  // of the wide field: long enough to copy for others to come in between

struct Ring {
    explicit Ring(const RingShape& shape)
        : memory(ReplayRing::nbytes(shape)), ring(ReplayRing::initialise(memory.data(), memory.size(), shape)) {}
    SharedMemory memory;
    ReplayRing ring;
};

// A wide field, a narrow one and a byte, all of which say the same ticket.
RingShape tickets_shape(std::int64_t capacity) {
    RingShape shape;
    shape.capacity = capacity;
    shape.fields = {{words * 8, false}, {8, false}, {1, false}};
    return shape;
}

RingShape steps_shape(std::int64_t capacity, std::int64_t n_step) {
    RingShape shape;
    shape.capacity = capacity;
    shape.fields = {{words * 8, true}, {4, false}};
    shape.linked = true;
    shape.reward = 1;
    shape.n_step = n_step;
    return shape;
}

void add_tickets(ReplayRing& ring, std::int64_t first, std::int64_t n) {
    std::vector<std::int64_t> wide, narrow;
    std::vector<std::uint8_t> bytes;
    for (std::int64_t i = first; i < first + n; ++i) {
        wide.insert(wide.end(), words, i);
        narrow.push_back(i);
        bytes.push_back(static_cast<std::uint8_t>(i));
    }
    const std::byte* columns[] = {reinterpret_cast<std::byte*>(wide.data()), reinterpret_cast<std::byte*>(narrow.data()),
                                  reinterpret_cast<std::byte*>(bytes.data())};
    ring.add(columns, n);
}

// Adds steps of environments: observation t + 1 follows t, and every fifth step ends an episode.
class Actor {
   public:
    Actor(const ReplayRing& view, std::int64_t id, std::int64_t num_envs)
        : ring_(view), stream_(num_envs, ring_.lookahead()), base_(id << 40), num_envs_(num_envs) {}

    void step() {
        std::vector<std::int64_t> obs, next;
        const std::vector<float> rewards(static_cast<std::size_t>(num_envs_), 1.0f);
        const std::vector<std::uint8_t> no(static_cast<std::size_t>(num_envs_), 0), yes(no.size(), 1);
        for (std::int64_t env = 0; env < num_envs_; ++env) {
            const std::int64_t now = base_ | env << 32 | t_;
            obs.insert(obs.end(), words, now);
            next.insert(next.end(), words, now + 1);
        }
        const std::byte* columns[] = {reinterpret_cast<std::byte*>(obs.data()), reinterpret_cast<const std::byte*>(rewards.data())};
        const std::byte* followers[] = {reinterpret_cast<std::byte*>(next.data()), nullptr};
        ring_.add(stream_, {columns, followers, no.data(), t_ % 5 == 4 ? yes.data() : no.data(), nullptr});
        ++t_;
    }

   private:
    ReplayRing ring_;
    ReplayRing::Stream stream_;
    std::int64_t base_, num_envs_, t_ = 0;
};

struct Drawn {
    explicit Drawn(std::size_t n)
        : tickets(n), weights(n), reward(n), discount(n), terminated(n), wide(n * words), next(n * words), narrow(n), bytes(n) {}

    bool draw(ReplayRing& ring, Random& random) {
        const bool linked = ring.shape().linked;
        std::byte* columns[] = {reinterpret_cast<std::byte*>(wide.data()),
                                linked ? nullptr : reinterpret_cast<std::byte*>(narrow.data()),
                                reinterpret_cast<std::byte*>(bytes.data())};
        std::byte* followers[] = {linked ? reinterpret_cast<std::byte*>(next.data()) : nullptr, nullptr, nullptr};
        ReplayRing::Batch batch(ring, {tickets, weights, reward, discount, terminated}, columns, followers);
        const bool any = ring.sample(random, {.beta = 0.4, .weights = rollmill::Weights::batch}, batch);
        redrawn += batch.redrawn;
        batches += any;
        return any;
    }
    // Whether it has drawn so many batches, or at least ten, of which enough samples were overwritten meanwhile: under
    // ThreadSanitizer nearly all of them are, and a batch takes up to a third of a second.
    bool enough(int most) const { return batches >= most || (batches >= 10 && redrawn >= 20'000); }
    void check_tickets() const {
        for (std::size_t i = 0; i < tickets.size(); ++i) {
            for (std::size_t j = 0; j < words; ++j) CHECK(wide[i * words + j] == narrow[i]);
            CHECK(bytes[i] == static_cast<std::uint8_t>(narrow[i]));
            CHECK(weights[i] > 0.0f && weights[i] <= 1.0f);
        }
    }
    void check_steps(std::int64_t n_step) const {
        for (std::size_t i = 0; i < tickets.size(); ++i) {
            const std::int64_t now = wide[i * words];
            const std::int64_t k = std::min(n_step, 5 - (now & 0xffffffff) % 5);
            for (std::size_t j = 0; j < words; ++j) {
                CHECK(wide[i * words + j] == now);
                CHECK(next[i * words + j] == now + k);
            }
            CHECK(reward[i] == static_cast<float>(k) && terminated[i] == 0 && discount[i] == 1.0f);
        }
    }

    std::vector<std::int64_t> tickets;
    std::vector<float> weights, reward, discount;
    std::vector<std::uint8_t> terminated;
    std::vector<std::int64_t> wide, next, narrow;
    std::vector<std::uint8_t> bytes;
    std::int64_t redrawn = 0;  // how many samples were overwritten while they were copied
    int batches = 0;
};

void check_whole(ReplayRing& ring) {
    std::int64_t live = 0;
    CHECK(ring.tree().hold().verify());
    for (std::int64_t row = 0; row < ring.shape().capacity; ++row) live += ring.tree().priority(row) > 0.0f;
    CHECK(ring.live() == live);
}

template <class Work>
pid_t start_child(Work&& work) {
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        work();
        std::_Exit(0);
    }
    return child;
}

}  // namespace

TEST(replay_ring_never_gives_mixed_transitions) {
    // So small that it goes round while a batch is copied.
    Ring r(tickets_shape(24));
    add_tickets(r.ring, 0, 24);
    std::atomic<std::int64_t> next = 24;
    std::atomic<bool> stop = false;
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i)
        threads.emplace_back([&] {
            ReplayRing view = r.ring;
            while (!stop.load()) {
                const std::int64_t first = next.fetch_add(5);
                add_tickets(view, first, 5);
            }
        });
    for (std::uint64_t i = 0; i < 2; ++i)
        threads.emplace_back([&, i] {
            ReplayRing view = r.ring;
            Random random{i, 0};
            Drawn drawn(512);
            while (!drawn.enough(200)) {
                CHECK(drawn.draw(view, random));
                drawn.check_tickets();
                const std::vector<float> priorities(512, static_cast<float>(random.uniform() + 1e-3));
                view.update(drawn.tickets, priorities, 1.0, 0.0f);
            }
            stop.store(true);
        });
    for (std::thread& thread : threads) thread.join();
    check_whole(r.ring);
    CHECK(r.ring.live() == 24);
}

TEST(replay_ring_is_drawn_from_while_all_of_it_is_written_over) {
    Ring r(tickets_shape(8));
    add_tickets(r.ring, 0, 8);
    std::atomic<std::int64_t> next = 8;
    std::atomic<int> drawing = 3;
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i)
        threads.emplace_back([&] {
            ReplayRing view = r.ring;
            while (drawing.load() > 0) add_tickets(view, next.fetch_add(8), 8);
        });
    for (std::uint64_t i = 0; i < 3; ++i)
        threads.emplace_back([&, i] {
            ReplayRing view = r.ring;
            Random random{i, 0};
            Drawn drawn(16);
            for (int j = 0; j < 100; ++j) {
                CHECK(drawn.draw(view, random));
                drawn.check_tickets();
            }
            drawing.fetch_sub(1);
        });
    for (std::thread& thread : threads) thread.join();
    check_whole(r.ring);
    CHECK(r.ring.live() == 8);
}

TEST(replay_ring_never_gives_mixed_steps) {
    for (const std::int64_t n_step : {1, 3}) {
        Ring r(steps_shape(60, n_step));
        std::atomic<bool> stop = false;
        std::vector<std::thread> threads;
        for (std::int64_t i = 0; i < 3; ++i)
            threads.emplace_back([&, i] {
                Actor actor(r.ring, i, 4);
                while (!stop.load()) actor.step();
            });
        for (std::uint64_t i = 0; i < 2; ++i)
            threads.emplace_back([&, i] {
                ReplayRing view = r.ring;
                Random random{i, 0};
                Drawn drawn(256);
                while (!drawn.enough(100))
                    if (drawn.draw(view, random)) drawn.check_steps(n_step);
                stop.store(true);
            });
        for (std::thread& thread : threads) thread.join();
        check_whole(r.ring);
    }
}

TEST(replay_ring_goes_round_with_every_size) {
    std::mt19937 random(1);
    for (const std::int64_t capacity : {1, 2, 17, 100}) {
        Ring r(tickets_shape(capacity));
        Random stream{1, 0};
        Drawn drawn(40);
        CHECK(!drawn.draw(r.ring, stream));
        std::int64_t given = 0;
        for (int i = 0; i < 300; ++i) {
            const std::int64_t n = static_cast<std::int64_t>(random() % static_cast<unsigned>(capacity)) + 1;
            add_tickets(r.ring, given, n);
            given += n;
            CHECK(r.ring.given() == given && r.ring.live() == std::min(given, capacity));
            CHECK(drawn.draw(r.ring, stream));
            drawn.check_tickets();
            for (std::size_t j = 0; j < drawn.tickets.size(); ++j) {
                CHECK(drawn.tickets[j] == drawn.narrow[j]);
                CHECK(drawn.tickets[j] < given && drawn.tickets[j] >= given - capacity);
            }
        }
        check_whole(r.ring);
        CHECK_THROWS(add_tickets(r.ring, 0, capacity + 1));
    }
}

TEST(replay_ring_attaches_to_what_is_there) {
    Ring r(tickets_shape(10));
    add_tickets(r.ring, 0, 10);
    ReplayRing same = ReplayRing::attach(r.memory.data(), r.memory.size(), tickets_shape(10));
    CHECK(same.live() == 10 && same.given() == 10 && same.next_stream() != r.ring.next_stream());
    CHECK_THROWS(ReplayRing::attach(r.memory.data(), r.memory.size(), tickets_shape(9)));
    CHECK_THROWS(ReplayRing::attach(r.memory.data(), 64, tickets_shape(10)));
    CHECK_THROWS(ReplayRing::initialise(r.memory.data(), r.memory.size(), tickets_shape(1000)));
    RingShape bad = steps_shape(10, 1);
    bad.reward = 0;
    CHECK_THROWS(ReplayRing::nbytes(bad));
    bad = steps_shape(10, 0);
    CHECK_THROWS(ReplayRing::nbytes(bad));
    bad = tickets_shape(10);
    bad.discount = 2.0;
    CHECK_THROWS(ReplayRing::nbytes(bad));
}

TEST(locks_of_another_boot_are_reset) {
    Ring r(tickets_shape(10));
    add_tickets(r.ring, 0, 10);
    SharedMemory found(r.memory.size());
    {
        const auto held = r.ring.tree().hold();
        std::memcpy(found.data(), r.memory.data(), found.size());  // what a flush brings to the disk
    }
    ReplayRing again = ReplayRing::attach(found.data(), found.size(), tickets_shape(10));
    CHECK_THROWS(again.tree().hold(0.01));
    again.reset_locks();
    add_tickets(again, 10, 7);
    check_whole(again);
}

TEST(a_killed_writer_of_a_replay_ring_leaves_it_whole) {
    Ring plain(tickets_shape(40));
    Ring steps(steps_shape(40, 3));
    add_tickets(plain.ring, 0, 40);
    std::mt19937 random(5);
    Random stream{1, 0};
    Drawn drawn(32);
    for (std::int64_t round = 0; round < 80; ++round) {
        const bool is_plain = round % 2 == 0;
        ReplayRing& ring = is_plain ? plain.ring : steps.ring;
        const std::int64_t before = ring.given();
        const pid_t child = start_child([&] {
            Actor actor(ring, round, 5);
            for (std::int64_t i = round << 40;; i += 30) {
                if (is_plain) add_tickets(ring, i, 30);
                else actor.step();
            }
        });
        while (ring.given() < before + 80) usleep(50);
        usleep(static_cast<useconds_t>(random() % 1000));
        CHECK(kill(child, SIGKILL) == 0);
        CHECK(waitpid(child, nullptr, 0) == child);
        check_whole(ring);
        if (drawn.draw(ring, stream)) is_plain ? drawn.check_tickets() : drawn.check_steps(3);
        // Others overwrite the rows that the dead one was writing.
        if (is_plain) {
            for (std::int64_t i = 0; i < 3; ++i) add_tickets(ring, i * 35, 35);
        } else {
            Actor actor(ring, 1000 + round, 5);
            for (int i = 0; i < 20; ++i) actor.step();
        }
        CHECK(drawn.draw(ring, stream));
        is_plain ? drawn.check_tickets() : drawn.check_steps(3);
        check_whole(ring);
    }
}
