#include "core/message_lanes.h"

#include <limits>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "shared_memory.h"

using rollmill::Message;
using rollmill::MessageLanes;
using rollmill::read_message;
using rollmill::Wait;
using rollmill::testing::SharedMemory;

namespace {

struct Queue {
    Queue(std::int64_t num_lanes, std::int64_t capacity)
        : memory(MessageLanes::nbytes(num_lanes, capacity)),
          lanes(memory.data(), memory.size(), num_lanes, capacity, true) {}
    SharedMemory memory;
    MessageLanes lanes;
};

}  // namespace

TEST(message_lanes_deliver_integers_and_bytes_as_they_were) {
    Queue q(1, 32);
    const std::int64_t lane = q.lanes.claim();
    const std::vector<std::int64_t> integers = {0, -1, 1, (std::int64_t{1} << 62) - 1, std::int64_t{1} << 62,
                                                -(std::int64_t{1} << 62), std::numeric_limits<std::int64_t>::min(),
                                                std::numeric_limits<std::int64_t>::max()};
    const std::vector<std::string> strings = {"", "a", "12345678", "123456789", std::string(100, 'x')};
    for (int round = 0; round < 20; ++round) {  // so that each of them once lies across the end
        for (std::size_t i = 0; i < integers.size() || i < strings.size(); ++i) {
            if (i < integers.size()) CHECK(q.lanes.put(lane, integers[i]));
            if (i < strings.size()) CHECK(q.lanes.put(lane, std::string_view(strings[i])));
            CHECK(q.lanes.size() == (i < integers.size()) + (i < strings.size()));
            std::vector<std::int64_t> words;
            MessageLanes::Sink sink{.words = &words, .limit = 10};
            q.lanes.take(sink);
            std::size_t at = 0;
            if (i < integers.size()) {
                const Message message = read_message(words.data());
                CHECK(message.is_integer && message.integer == integers[i]);
                at = message.num_words;
            }
            if (i < strings.size()) {
                const Message message = read_message(words.data() + at);
                CHECK(!message.is_integer && message.bytes == strings[i]);
                at += message.num_words;
            }
            CHECK(at == words.size());
        }
    }
}

TEST(message_lanes_take_integers_up_to_the_first_bytes) {
    Queue q(2, 8);
    const std::int64_t lane = q.lanes.claim();
    CHECK(q.lanes.put(lane, 1) && q.lanes.put(lane, std::int64_t{1} << 62) && q.lanes.put(lane, std::string_view("b")));
    std::int64_t out[4];
    MessageLanes::Sink sink{.out = out, .limit = 4};
    q.lanes.take(sink);
    CHECK(sink.count == 2 && sink.met_bytes && out[0] == 1 && out[1] == std::int64_t{1} << 62);
    CHECK(q.lanes.size() == 1);
}

TEST(message_lanes_refuse_what_does_not_fit_now) {
    Queue q(1, 4);
    const std::int64_t lane = q.lanes.claim();
    CHECK(q.lanes.put(lane, 1) && q.lanes.put(lane, 2) && q.lanes.put(lane, 3));
    CHECK(!q.lanes.put(lane, std::string_view("x")));            // two words
    CHECK(!q.lanes.put(lane, std::int64_t{1} << 62));            // two words
    CHECK(!q.lanes.is_full(lane) && q.lanes.put(lane, 4) && q.lanes.is_full(lane));
    CHECK(q.lanes.wait_for_space(lane, 2, 0.01) == Wait::timed_out);
}

TEST(message_lanes_are_claimed_once_and_again_after_they_are_free) {
    Queue q(2, 4);
    const std::int64_t first = q.lanes.claim();
    const std::int64_t second = q.lanes.claim();
    CHECK(first != second && first >= 0 && second >= 0);
    CHECK(q.lanes.claim() == -1);
    q.lanes.unclaim(first);
    CHECK(q.lanes.claim() == first);
}

TEST(message_lanes_share_their_messages_among_consumers) {
    constexpr std::int64_t total = 20'000;
    Queue q(2, 64);
    std::vector<std::thread> threads;
    for (int p = 0; p < 2; ++p)
        threads.emplace_back([&, p] {
            const std::int64_t lane = q.lanes.claim();
            for (std::int64_t i = p; i < total; i += 2)
                while (!q.lanes.put(lane, i)) q.lanes.wait_for_space(lane, 1, 10.0);
        });
    std::vector<std::vector<std::int64_t>> got(3);
    for (auto& mine : got)
        threads.emplace_back([&] {
            std::int64_t out[16];
            for (;;) {
                MessageLanes::Sink sink{.out = out, .limit = 16};
                const Wait result = q.lanes.take_waiting(sink, 0.5);
                if (result == Wait::timed_out) return;
                mine.insert(mine.end(), out, out + sink.count);
            }
        });
    for (std::thread& thread : threads) thread.join();
    std::set<std::int64_t> seen;
    std::size_t count = 0;
    for (const auto& mine : got) {
        seen.insert(mine.begin(), mine.end());
        count += mine.size();
    }
    CHECK(count == total && seen.size() == total);
}
