// Drawing from a replay ring: rows are found under the lock and copied without it, and drawn anew if they were written
// over meanwhile.
#include <algorithm>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>

#include "core/futex.h"
#include "core/replay_record.h"
#include "core/replay_ring.h"

namespace rollmill {
namespace {

// After so many rounds of which each drew something that was written over while it was copied, the lock is kept.
constexpr int unlocked_rounds = 32;
constexpr double look_again_seconds = 0.001;

}  // namespace

// What is being drawn: `count` rows, for these places of the batch.
struct ReplayRing::Places {
    std::int64_t count = 0;
    std::vector<std::int64_t> at;
    std::vector<std::int64_t> rows;
    std::vector<std::int64_t> then;  // the rows that are bootstrapped from; no_row: read while it was written over
    std::vector<std::int64_t> going;
    std::vector<float> priorities;

    void resize(std::int64_t n) {
        count = n;
        const auto size = static_cast<std::size_t>(n);
        if (rows.size() >= size) return;
        at.resize(size);
        rows.resize(size);
        then.resize(size);
        going.resize(size);
        priorities.resize(size);
    }
};

void ReplayRing::prefetch_record(std::int64_t row) const noexcept {
    const std::byte* at = record(row);
    for (std::size_t i = 0; i < prefetched_; i += line_bytes) __builtin_prefetch(at + i);
}

void ReplayRing::draw(SumTree::Held& held, Random& random, bool stratified, std::int64_t of, Places& places) noexcept {
    constexpr std::int64_t block = 64;  // while one is searched for, the records of the one before are on their way
    const double mass = static_cast<double>(held.total());
    double residuals[block];
    for (std::int64_t start = 0; start < places.count; start += block) {
        const std::int64_t count = std::min(block, places.count - start);
        for (std::int64_t i = 0; i < count; ++i) {
            const double u = random.uniform();
            const auto part = static_cast<double>(places.at[static_cast<std::size_t>(start + i)]);
            residuals[i] = mass * (stratified ? (part + u) / static_cast<double>(of) : u);
        }
        std::int64_t* rows = places.rows.data() + start;
        held.find({residuals, static_cast<std::size_t>(count)}, {rows, static_cast<std::size_t>(count)});
        for (std::int64_t i = 0; i < count; ++i) {
            places.priorities[static_cast<std::size_t>(start + i)] = tree_.priority(rows[i]);
            prefetch_record(rows[i]);
        }
    }
}

// From the drawn rows forward, to where the bootstraps' values come from: all of them one step at a time, so that their
// next records are fetched side by side.
void ReplayRing::walk(Places& places, const Batch& batch) const noexcept {
    const std::size_t reward_at = offsets_[static_cast<std::size_t>(shape_.reward)];
    double gamma = 1.0;
    const auto step = [&](std::int64_t at, std::int64_t row, std::int64_t* then) {
        const std::byte* from = record(row);
        batch.reward[at] += static_cast<float>(gamma) * load_from<float>(from + reward_at);
        *then = load_from<std::int64_t>(from);
        if (*then != no_row) prefetch_record(*then);
        return load_from<std::uint8_t>(from + flags_at_);
    };
    const auto end = [&](std::int64_t at, std::uint8_t flags) {
        batch.terminated[at] = (flags & terminated_flag) != 0;
        batch.discount[at] = (flags & terminated_flag) != 0 ? 0.0f : static_cast<float>(gamma * shape_.discount);
    };
    std::int64_t* going = places.going.data();  // whose episodes go on
    std::int64_t num_going = places.count;
    for (std::int64_t i = 0; i < places.count; ++i) {
        going[i] = i;
        batch.reward[places.at[static_cast<std::size_t>(i)]] = 0.0f;
    }
    for (std::int64_t k = 0; k < shape_.n_step && num_going > 0; ++k, gamma *= shape_.discount) {
        std::int64_t left = 0;
        for (std::int64_t j = 0; j < num_going; ++j) {
            const auto i = static_cast<std::size_t>(going[j]);
            const std::uint8_t flags = step(places.at[i], k == 0 ? places.rows[i] : places.then[i], &places.then[i]);
            if (flags != 0 || places.then[i] == no_row || k == shape_.n_step - 1)
                end(places.at[i], flags);
            else
                going[left++] = going[j];
        }
        num_going = left;
    }
}

void ReplayRing::copy_out(const Places& places, const Batch& batch) const noexcept {
    constexpr std::int64_t ahead = 4;
    const auto gather = [&](std::byte* to, const std::vector<std::int64_t>& rows, std::size_t field) {
        const std::size_t bytes = shape_.fields[field].bytes;
        const std::byte* from = records_ + offsets_[field];
        with_load(bytes, [&](auto&& load) {
            for (std::int64_t i = 0; i < places.count; ++i) {
                // What does not lie within the lines that are here by now.
                if (stride_ > prefetched_ && i + ahead < places.count) {
                    const std::int64_t next = std::max(rows[static_cast<std::size_t>(i + ahead)], std::int64_t{0});
                    const std::byte* row = from + static_cast<std::size_t>(next) * stride_;
                    for (std::size_t at = 0; at < std::min(bytes, 4 * line_bytes); at += line_bytes)
                        __builtin_prefetch(row + at);
                }
                const std::int64_t row = rows[static_cast<std::size_t>(i)];
                if (row == no_row) continue;
                load(to + static_cast<std::size_t>(places.at[static_cast<std::size_t>(i)]) * bytes,
                     from + static_cast<std::size_t>(row) * stride_);
            }
        });
    };
    for (std::size_t field = 0; field < shape_.fields.size(); ++field) {
        if (batch.columns[field] != nullptr) gather(batch.columns[field], places.rows, field);
        if (batch.next_columns[field] != nullptr) gather(batch.next_columns[field], places.then, field);
    }
}

// Keeps writers from being given rows, as long as it lives; for when all rows there are, are being written over, again and
// again. Those that have theirs already wait for nobody who waits for this, and other halts are not waited for. Throws
// std::runtime_error when a writer does not finish.
class ReplayRing::Halt {
   public:
    explicit Halt(ReplayRing& ring) : header_(*ring.header_), place_(ring.choose_writer()) {
        std::size_t used;
        {
            auto held = ring.tree_.hold();
            used = header_.writers_used = std::max(header_.writers_used, std::uint64_t{place_.index() + 1});
            place_.write_from(halted);
        }
        for (std::size_t writer = 0; writer < used; ++writer) wait_for(writer);
    }
    Halt(const Halt&) = delete;
    Halt& operator=(const Halt&) = delete;

   private:
    std::int64_t ticket_of(std::size_t writer) const noexcept {
        return header_.ticket_of(writer).load(std::memory_order_acquire);
    }

    // Not for its lock alone: it may be taken again at once, by one who then waits for this.
    void wait_for(std::size_t writer) {
        const std::int64_t ticket = ticket_of(writer);
        if (ticket == nobody || ticket == halted) return;
        const double latest = monotonic_seconds() + SumTree::max_wait_seconds;
        while (ticket_of(writer) == ticket) {
            if (WriterPlace(header_, writer, look_again_seconds)) return;
            if (monotonic_seconds() > latest)
                throw std::runtime_error("all rows are being written over, and were not finished within " +
                                         std::to_string(SumTree::max_wait_seconds) +
                                         " s; look for a stopped process or thread");
        }
    }

    Header& header_;
    WriterPlace place_;
};

bool ReplayRing::sample(Random& random, const DrawRule& rule, const Batch& batch) {
    thread_local Places own_places;
    Places& places = own_places;  // looked up once
    places.resize(batch.count);
    std::iota(places.at.begin(), places.at.begin() + batch.count, std::int64_t{0});
    double total = 0.0, least = 0.0;
    std::int64_t num_live = 0;
    const auto read = [&] {
        if (shape_.linked) walk(places, batch);
        copy_out(places, batch);
    };
    std::optional<Halt> halt;
    for (int round = 0; places.count > 0; ++round) {
        std::int64_t given_then = 0;
        {
            // One look: sum, priorities, generation and number belong together.
            auto held = tree_.hold();
            count_again_after_repair(held);
            total = static_cast<double>(held.total());
            if (total > 0.0) {
                draw(held, random, rule.stratified, batch.count, places);
                // Of all rounds: what an earlier one drew may be less than all that is there now.
                const double now = tree_.has_minimum() ? static_cast<double>(held.minimum()) : 0.0;
                least = least > 0.0 ? std::min(least, now) : now;
                num_live = header_->live;
                given_then = given();
                if (round >= unlocked_rounds) read();
            } else if (halt || writer_below(nobody) == max_writers) {
                return false;
            }
        }
        if (!(total > 0.0)) {
            halt.emplace(*this);
            continue;
        }
        const std::int64_t place = given_then % shape_.capacity, lap = given_then - place;
        for (std::int64_t i = 0; i < places.count; ++i) {
            const auto j = static_cast<std::size_t>(i);
            const std::int64_t row = places.rows[j];
            batch.tickets[places.at[j]] = lap + row - (row >= place ? shape_.capacity : 0);
            batch.weights[places.at[j]] = places.priorities[j];
        }
        if (round >= unlocked_rounds) break;
        read();
        const std::int64_t given_now = given();
        if (given_now == given_then) break;
        std::int64_t torn = 0;
        for (std::int64_t i = 0; i < places.count; ++i) {
            const std::int64_t at = places.at[static_cast<std::size_t>(i)];
            if (batch.tickets[at] < given_now - shape_.capacity) places.at[static_cast<std::size_t>(torn++)] = at;
        }
        places.count = torn;
    }
    const std::span weights(batch.weights, static_cast<std::size_t>(batch.count));
    weigh(weights, rule.weights, rule.beta, {total, least, num_live}, weights);
    return true;
}

}  // namespace rollmill
