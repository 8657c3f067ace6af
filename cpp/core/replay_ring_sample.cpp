// Drawing from a replay ring.
#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>

#include "core/errors.h"
#include "core/futex.h"
#include "core/replay_ring.h"

namespace rollmill {
namespace {

constexpr double look_again_seconds = 0.001;

}  // namespace

ReplayRing::Batch::Batch(const ReplayRing& ring, const BatchArrays& arrays, BatchColumns of_drawn, BatchColumns of_next)
    : arrays_(arrays), rows_(arrays.tickets.size()) {
    leaves = rows_;
    weights = arrays.weights;
    if (ring.shape_.linked) {
        then_.resize(rows_.size());
        returns_.resize(rows_.size());
    }
    const bool prefetched = ring.layout_.stride <= ring.prefetched_;
    for (std::size_t field = 0; field < ring.shape_.fields.size(); ++field) {
        const auto add = [&](std::byte* to, const std::vector<std::int64_t>& rows) {
            if (to != nullptr)
                columns.push_back({to, ring.records_ + ring.layout_.offsets[field], rows.data(), 1,
                                   ring.shape_.fields[field].bytes, ring.layout_.stride, prefetched});
        };
        add(of_drawn[field], rows_);
        add(of_next[field], then_);
    }
}

void ReplayRing::prefetch_record(std::int64_t row) const noexcept {
    const std::byte* at = record(row);
    for (std::size_t i = 0; i < prefetched_; i += line_bytes) __builtin_prefetch(at + i);
}

// Follows the drawn rows to those that they bootstrap from, all of them one step at a time, so that the cache misses of
// their next records overlap.
void ReplayRing::walk(Batch& batch) const noexcept {
    const std::size_t reward_at = layout_.offsets[static_cast<std::size_t>(shape_.reward)];
    std::vector<std::int64_t>& going = batch.going_;
    going = batch.pending;
    for (const std::int64_t i : going) {
        batch.then_[i] = batch.rows_[i];
        batch.returns_[i] = {};
    }
    for (std::int64_t k = 1; k <= shape_.n_step && !going.empty(); ++k) {
        std::size_t left = 0;
        for (const std::int64_t i : going) {
            const std::byte* from = record(batch.then_[i]);
            const auto next = load<std::int64_t>(from);
            const auto flags = load<std::uint8_t>(from, layout_.flags_at);
            const bool terminated = (flags & terminated_flag) != 0;
            batch.returns_[i].add(static_cast<double>(load<float>(from, reward_at)), shape_.discount, terminated);
            batch.arrays_.terminated[i] = terminated;
            const bool is_row = next >= 0 && next < shape_.capacity;  // or there is none, or a file is damaged
            batch.then_[i] = is_row ? next : no_row;
            if (!is_row) continue;
            prefetch_record(next);
            if (flags == 0) going[left++] = i;
        }
        going.resize(left);
    }
    for (const std::int64_t i : batch.pending) {
        batch.arrays_.reward[i] = static_cast<float>(batch.returns_[i].reward);
        batch.arrays_.discount[i] = static_cast<float>(batch.returns_[i].discount);
    }
}

// Prevents new reservations while it exists, for a ring whose rows are all being overwritten, again and again. Waits
// for the writers that have rows, which never wait for a halt, but not for other halts. Throws std::runtime_error when
// a writer does not finish.
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

    // Not for the lock alone: another writer may acquire it at once and then wait for this halt.
    void wait_for(std::size_t writer) {
        const std::int64_t ticket = ticket_of(writer);
        if (ticket == no_ticket || ticket == halted) return;
        const double latest = monotonic_seconds() + SumTree::max_wait_seconds;
        while (ticket_of(writer) == ticket) {
            if (WriterPlace(header_, writer, look_again_seconds)) return;
            if (monotonic_seconds() > latest)
                raise<std::runtime_error>("timed out after ", SumTree::max_wait_seconds,
                                          " s waiting for writers; look for a stopped process or thread");
        }
    }

    Header& header_;
    WriterPlace place_;
};

// See draw_batch.
class ReplayRing::Source {
   public:
    Source(ReplayRing& ring, Batch& batch) : ring_(ring), batch_(batch), tickets_(batch.arrays_.tickets) {}

    void begin_look(SumTree::Held& held) noexcept { ring_.count_again_after_repair(held); }
    void found(std::int64_t row) const noexcept { ring_.prefetch_record(row); }
    std::int64_t end_look() noexcept {
        given_then_ = ring_.given();
        return ring_.header_->live;
    }
    bool expects_items() const noexcept { return !halt_ && ring_.writer_below(no_ticket) != max_writers; }
    void wait_for_items() { halt_.emplace(ring_); }

    void read() noexcept {
        const std::int64_t capacity = ring_.shape_.capacity, place = given_then_ % capacity, lap = given_then_ - place;
        for (const std::int64_t i : batch_.pending) {
            const std::int64_t row = batch_.rows_[i];
            tickets_[i] = lap + row - (row >= place ? capacity : 0);
        }
        if (ring_.shape_.linked) ring_.walk(batch_);
        batch_.copy_pending();
    }
    void keep_overwritten() {
        const std::int64_t given_now = ring_.given();
        if (given_now == given_then_) return batch_.pending.clear();
        const std::int64_t oldest = given_now - ring_.shape_.capacity;
        std::erase_if(batch_.pending, [&](std::int64_t i) { return tickets_[i] >= oldest; });
    }

   private:
    ReplayRing& ring_;
    Batch& batch_;
    std::span<std::int64_t> tickets_;
    std::int64_t given_then_ = 0;
    std::optional<Halt> halt_;
};

bool ReplayRing::sample(Random& random, const DrawRule& rule, Batch& batch) {
    return draw_batch(tree_, random, rule, batch, Source(*this, batch));
}

}  // namespace rollmill
