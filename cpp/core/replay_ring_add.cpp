// Adding to a replay ring: rows are reserved under the lock, written without it, and committed under it.
#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "core/errors.h"
#include "core/replay_ring.h"

namespace rollmill {

// Rows reserved for one writer, from the reservation to the commit.
class ReplayRing::Writing {
   public:
    Writing(ReplayRing& ring, std::int64_t n) : ring_(ring), header_(*ring.header_), place_(ring.choose_writer()) {
        if (n > ring.shape_.capacity)
            raise<std::invalid_argument>(n, " rows at once do not fit a capacity of ", ring.shape_.capacity,
                                         "; add fewer at once");
        for (std::size_t other = reserve(n); other != max_writers; other = reserve(n))
            if (!WriterPlace(header_, other, SumTree::max_wait_seconds))
                raise<std::runtime_error>("timed out after ", SumTree::max_wait_seconds,
                                          " s waiting for another writer's rows; look for a stopped process or thread");
    }
    Writing(const Writing&) = delete;
    Writing& operator=(const Writing&) = delete;

    std::int64_t first() const noexcept { return first_; }

   private:
    // Reserves the next n rows, or returns a writer that is still writing one of them.
    std::size_t reserve(std::int64_t n) {
        auto held = ring_.tree_.hold();
        ring_.begin_change(held);
        header_.writers_used = std::max(header_.writers_used, std::uint64_t{place_.index() + 1});
        first_ = header_.given.load(std::memory_order_relaxed);
        const std::size_t other = ring_.writer_below(first_ + n - ring_.shape_.capacity, place_.index());
        if (other != max_writers) return other;
        ring_.for_rows(first_, n, [&](std::int64_t row, std::int64_t count) {
            for (std::int64_t i = 0; i < count; ++i) header_.live -= ring_.tree_.priority(row + i) > 0.0f;
            held.fill(row, count, 0.0f);
        });
        place_.write_from(first_);
        header_.given.store(first_ + n, std::memory_order_relaxed);
        return max_writers;
    }

    ReplayRing& ring_;
    Header& header_;
    WriterPlace place_;
    std::int64_t first_ = 0;
};

ReplayRing::WriterPlace ReplayRing::choose_writer() {
    for (std::size_t index = 0; index < max_writers; ++index)
        if (WriterPlace place(*header_, index, 0.0); place) return place;
    WriterPlace place(*header_, 0, SumTree::max_wait_seconds);
    if (!place)
        raise<std::runtime_error>("all ", max_writers, " writers were busy for ", SumTree::max_wait_seconds,
                                  " s; look for stopped processes");
    return place;
}

std::size_t ReplayRing::writer_below(std::int64_t ticket, std::size_t except) const noexcept {
    for (std::size_t i = 0; i < header_->writers_used; ++i)
        if (i != except && header_->ticket_of(i).load(std::memory_order_acquire) < ticket) return i;
    return max_writers;
}

ReplayRing::Stream::Stream(std::int64_t num_envs, std::int64_t lookahead)
    : lookahead_(lookahead),
      newest_(static_cast<std::size_t>(num_envs), no_row),
      count_(static_cast<std::size_t>(num_envs), 0),
      waiting_(static_cast<std::size_t>(num_envs * (lookahead + 1))),
      given_(static_cast<std::size_t>(num_envs)) {
    ready_.reserve(waiting_.size());
}

void ReplayRing::Stream::interrupt() noexcept {
    std::fill(newest_.begin(), newest_.end(), no_row);
    std::fill(count_.begin(), count_.end(), 0);
}

std::int64_t ReplayRing::add(std::span<const std::byte* const> columns, std::int64_t n) {
    if (shape_.linked) throw std::invalid_argument("this ring is linked: add steps of a stream");
    if (n == 0) return given();
    const Writing writing(*this, n);
    std::int64_t done = 0;
    for_rows(writing.first(), n, [&](std::int64_t row, std::int64_t count) {
        for (std::size_t field = 0; field < shape_.fields.size(); ++field) {
            const std::size_t bytes = shape_.fields[field].bytes;
            const std::byte* from = columns[field] + static_cast<std::size_t>(done) * bytes;
            std::byte* to = record(row) + layout_.offsets[field];
            for (std::int64_t i = 0; i < count; ++i, from += bytes, to += layout_.stride) racing_write(to, from, bytes);
        }
        done += count;
    });
    auto held = tree_.hold();
    begin_change(held);
    const float priority = held.maximum();
    for_rows(writing.first(), n, [&](std::int64_t row, std::int64_t count) {
        held.fill(row, count, priority);
        header_->live += priority > 0.0f ? count : 0;
    });
    return writing.first();
}

std::int64_t ReplayRing::add(Stream& stream, const Step& step) {
    if (!shape_.linked) throw std::invalid_argument("this ring is not linked: add transitions without a stream");
    const std::int64_t num_envs = stream.num_envs();
    const auto is_valid = [&](std::int64_t env) { return step.valid == nullptr || step.valid[env] != 0; };
    const auto flags_of = [&](std::int64_t env) {
        const bool truncated = step.truncated != nullptr && step.truncated[env] != 0;
        return static_cast<std::uint8_t>((step.terminated[env] != 0 ? terminated_flag : 0) |
                                         (truncated ? truncated_flag : 0));
    };
    std::int64_t num_rows = 0, num_ends = 0;
    for (std::int64_t env = 0; env < num_envs; ++env)
        if (is_valid(env)) {
            ++num_rows;
            num_ends += flags_of(env) != 0;
        }
    if (num_rows == 0) {
        stream.interrupt();
        return 0;
    }
    const Writing writing(*this, num_rows + num_ends);

    std::int64_t ticket = writing.first(), last_ticket = writing.first() + num_rows;
    for (std::int64_t env = 0; env < num_envs; ++env) {
        stream.given_[env] = is_valid(env) ? ticket++ : no_row;
        if (is_valid(env)) __builtin_prefetch(record(row_of(ticket - 1)), 1);
    }
    for (std::size_t field = 0; field < shape_.fields.size(); ++field) {
        const std::size_t bytes = shape_.fields[field].bytes;
        for (std::int64_t env = 0; env < num_envs; ++env)
            if (is_valid(env))
                racing_write(record(row_of(stream.given_[env])) + layout_.offsets[field],
                             step.columns[field] + static_cast<std::size_t>(env) * bytes, bytes);
    }
    const auto write_next = [&](std::int64_t row, std::int64_t next) {
        racing_store(reinterpret_cast<std::int64_t*>(record(row)), next);
    };
    const auto write_head = [&](std::int64_t row, std::int64_t next, std::uint8_t flags) {
        write_next(row, next);
        racing_store(reinterpret_cast<std::uint8_t*>(record(row) + layout_.flags_at), flags);
    };
    for (std::int64_t env = 0; env < num_envs; ++env) {
        if (!is_valid(env)) continue;
        const std::uint8_t flags = flags_of(env);
        const std::int64_t row = row_of(stream.given_[env]);
        if (flags == 0) {
            write_head(row, no_row, 0);
            continue;
        }
        const std::int64_t last = row_of(last_ticket++);
        write_head(row, last, flags);
        write_head(last, no_row, 0);
        for (std::size_t field = 0; field < shape_.fields.size(); ++field) {
            const auto& [bytes, has_next] = shape_.fields[field];
            if (has_next)
                racing_write(record(last) + layout_.offsets[field],
                             step.next_columns[field] + static_cast<std::size_t>(env) * bytes, bytes);
        }
    }

    auto held = tree_.hold();
    begin_change(held);
    const std::int64_t oldest = this->oldest();
    std::vector<std::int64_t>& ready = stream.ready_;
    ready.clear();
    for (std::int64_t env = 0; env < num_envs; ++env) {
        auto &newest = stream.newest_[env], &count = stream.count_[env];
        if (!is_valid(env)) {
            newest = no_row;
            count = 0;
            continue;
        }
        const std::int64_t own = stream.given_[env];
        if (newest != no_row && newest >= oldest) write_next(row_of(newest), row_of(own));
        std::int64_t* waiting = stream.waiting(env);
        waiting[count++] = own;
        newest = own;
        std::int64_t whole = count > stream.lookahead_ ? 1 : 0;
        if (flags_of(env) != 0) {
            whole = count;
            newest = no_row;
        }
        for (std::int64_t i = 0; i < whole; ++i)
            if (waiting[i] >= oldest) ready.push_back(row_of(waiting[i]));
        count -= whole;
        std::memmove(waiting, waiting + whole, static_cast<std::size_t>(count) * sizeof(*waiting));
    }
    if (!ready.empty()) {
        const float priority = held.maximum();
        held.assign(ready, priority);
        header_->live += priority > 0.0f ? static_cast<std::int64_t>(ready.size()) : 0;
    }
    return num_rows + num_ends;
}

}  // namespace rollmill
