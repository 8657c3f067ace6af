#include "core/replay_ring.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <new>
#include <numeric>
#include <stdexcept>
#include <string>
#include <system_error>

namespace rollmill {
namespace {

constexpr std::uint64_t magic = 0x474e495259414c50;  // "PLAYRING"
constexpr std::size_t line_bytes = 64;
constexpr std::uint8_t terminated_flag = 1, truncated_flag = 2;
constexpr std::int64_t no_row = -1;

// After so many rounds of which each drew something that was written over while it was copied, the lock is kept.
constexpr int unlocked_rounds = 32;

std::size_t rounded_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

// Where fields lie in a record: small ones first, so that what a walk looks at is on the first line.
struct Layout {
    std::vector<std::size_t> offsets;
    std::size_t flags_at = sizeof(std::int64_t);
    std::size_t stride = 0;

    explicit Layout(const RingShape& shape) : offsets(shape.fields.size()) {
        std::size_t end = shape.linked ? flags_at + 1 : 0;
        std::vector<std::size_t> order(offsets.size());
        std::iota(order.begin(), order.end(), std::size_t{0});
        std::stable_sort(order.begin(), order.end(),
                         [&](std::size_t a, std::size_t b) { return shape.fields[a].bytes < shape.fields[b].bytes; });
        for (const std::size_t field : order) {
            const std::size_t bytes = shape.fields[field].bytes;
            offsets[field] = rounded_up(end, bytes >= 8 ? 8 : std::bit_floor(std::max(bytes, std::size_t{1})));
            end = offsets[field] + bytes;
        }
        const std::size_t tight = std::max(rounded_up(end, 8), std::size_t{8}), lines = rounded_up(tight, line_bytes);
        stride = tight <= line_bytes ? std::bit_ceil(tight) : (lines - tight) * 8 <= tight ? lines : tight;
    }
};

// Stores release and loads acquire, which costs nothing on x86: who reads a word that was written after rows were given
// out also sees, if it looks after that, that they were.
template <class Word>
void store_word(std::byte* to, const std::byte* from) noexcept {
    Word word;
    std::memcpy(&word, from, sizeof(word));
    std::atomic_ref<Word>(*reinterpret_cast<Word*>(to)).store(word, std::memory_order_release);
}

template <class Word>
Word load(const std::byte* from) noexcept {
    return std::atomic_ref(*reinterpret_cast<Word*>(const_cast<std::byte*>(from))).load(std::memory_order_acquire);
}

template <class Word>
void load_word(std::byte* to, const std::byte* from) noexcept {
    const Word word = load<Word>(from);
    std::memcpy(to, &word, sizeof(word));
}

// Into a record, where somebody may be reading. Fields of 8 bytes and more begin at a multiple of 8.
void racing_store(std::byte* to, const std::byte* from, std::size_t size) noexcept {
    std::size_t at = 0;
    if (size == 4) return store_word<std::uint32_t>(to, from);
    if (size >= 8)
        for (; at + 8 <= size; at += 8) store_word<std::uint64_t>(to + at, from + at);
    for (; at < size; ++at) store_word<std::uint8_t>(to + at, from + at);
}

// Calls `copy(load)` with a function that loads one field out of a record; of the sizes of scalars and small vectors it
// is a few moves.
template <class Copy>
void with_load(std::size_t bytes, Copy&& copy) {
    const auto words = [](auto count) {
        return [](std::byte* to, const std::byte* from) {
            for (std::size_t i = 0; i < decltype(count)::value; ++i) load_word<std::uint64_t>(to + 8 * i, from + 8 * i);
        };
    };
    switch (bytes) {
        case 1: return copy([](std::byte* to, const std::byte* from) { load_word<std::uint8_t>(to, from); });
        case 4: return copy([](std::byte* to, const std::byte* from) { load_word<std::uint32_t>(to, from); });
        case 8: return copy(words(std::integral_constant<std::size_t, 1>{}));
        case 16: return copy(words(std::integral_constant<std::size_t, 2>{}));
        case 32: return copy(words(std::integral_constant<std::size_t, 4>{}));
        default:
            return copy([bytes](std::byte* to, const std::byte* from) {
                std::size_t at = 0;
                if (bytes >= 8)
                    for (; at + 8 <= bytes; at += 8) load_word<std::uint64_t>(to + at, from + at);
                for (; at < bytes; ++at) load_word<std::uint8_t>(to + at, from + at);
            });
    }
}

// To the disk, and waits until it is there.
void write_through(void* memory, std::size_t bytes) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory);
    const auto ahead = address % static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    if (msync(reinterpret_cast<void*>(address - ahead), bytes + ahead, MS_SYNC) != 0)
        throw std::system_error(errno, std::generic_category(), "a replay's file could not be written to the disk");
}

std::uint64_t digest_of(const RingShape& shape) {
    std::uint64_t hash = 0xcbf29ce484222325u;
    const auto add = [&](std::uint64_t value) { hash = (hash ^ value) * 0x100000001b3u ^ (hash >> 29); };
    for (const std::int64_t value : {shape.capacity, shape.n_step, std::int64_t{shape.linked}, std::int64_t{shape.reward},
                                     std::int64_t{shape.tree.fanout}, std::int64_t{shape.tree.minimum}})
        add(static_cast<std::uint64_t>(value));
    add(std::bit_cast<std::uint64_t>(shape.discount));
    for (const RingField& field : shape.fields) {
        add(field.bytes);
        add(field.has_next);
    }
    return hash;
}

void check(const RingShape& shape) {
    if (shape.n_step < 1 || shape.n_step > ReplayRing::max_n_step)
        throw std::invalid_argument("n_step is " + std::to_string(shape.n_step) + "; it must be 1 to " +
                                    std::to_string(ReplayRing::max_n_step));
    if (!(shape.discount >= 0.0 && shape.discount <= 1.0))
        throw std::invalid_argument("discount is " + std::to_string(shape.discount) + "; it must be 0 to 1");
    const auto fields = static_cast<int>(shape.fields.size());
    if (shape.linked ? shape.reward < 0 || shape.reward >= fields ||
                           shape.fields[static_cast<std::size_t>(shape.reward)].bytes != sizeof(float)
                     : shape.n_step != 1 || shape.reward != -1)
        throw std::invalid_argument("linked rows need a reward of 4 bytes; others have neither it nor n_step > 1");
}

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

// Rows given out to one writer, from the reservation to the commit.
class ReplayRing::Writing {
   public:
    Writing(ReplayRing& ring, std::int64_t n) : ring_(ring), header_(*ring.header_) {
        if (n > ring.shape_.capacity)
            throw std::invalid_argument(std::to_string(n) + " rows at once do not fit a capacity of " +
                                        std::to_string(ring.shape_.capacity) + "; use more, or smaller parts");
        choose_writer();
        try {
            reserve(n);
        } catch (...) {
            header_.writers[index_].lock.release();
            throw;
        }
    }
    Writing(const Writing&) = delete;
    Writing& operator=(const Writing&) = delete;
    ~Writing() {
        std::atomic_ref(header_.writing[index_]).store(nobody, std::memory_order_release);
        header_.writers[index_].lock.release();
    }

    std::int64_t first() const noexcept { return first_; }

   private:
    void choose_writer() {
        for (index_ = 0; index_ < max_writers; ++index_)
            if (take(index_, 0.0)) return;
        index_ = 0;
        if (!take(index_, SumTree::max_wait_seconds))
            throw std::runtime_error("all " + std::to_string(max_writers) + " writers were busy for " +
                                     std::to_string(SumTree::max_wait_seconds) + " s; look for stopped processes");
    }

    bool take(std::size_t index, double seconds) {
        RobustLock& lock = header_.writers[index].lock;
        const RobustLock::Acquired acquired = lock.acquire(seconds);
        if (acquired == RobustLock::Acquired::timed_out) return false;
        if (acquired == RobustLock::Acquired::abandoned) lock.mark_consistent();
        // Left by one that died: its rows are at priority 0 and nobody writes them.
        std::atomic_ref(header_.writing[index]).store(nobody, std::memory_order_release);
        return true;
    }

    void reserve(std::int64_t n) {
        for (;;) {
            std::size_t other;
            {
                auto held = ring_.tree_.hold();
                ring_.begin_change(held);
                header_.writers_used = std::max(header_.writers_used, std::uint64_t{index_ + 1});
                first_ = header_.given.load(std::memory_order_relaxed);
                other = in_the_way(first_ + n - ring_.shape_.capacity);
                if (other == max_writers) {
                    give_out(held, n);
                    return;
                }
            }
            if (!take(other, SumTree::max_wait_seconds))
                throw std::runtime_error(
                    "rows that another process or thread is writing were not finished within " +
                    std::to_string(SumTree::max_wait_seconds) + " s, and the ring has come round to them; look for a "
                    "stopped one");
            header_.writers[other].lock.release();
        }
    }

    // Who writes tickets below this one; max_writers if nobody does.
    std::size_t in_the_way(std::int64_t below) const noexcept {
        for (std::size_t i = 0; i < header_.writers_used; ++i)
            if (i != index_ && std::atomic_ref(header_.writing[i]).load(std::memory_order_acquire) < below) return i;
        return max_writers;
    }

    void give_out(SumTree::Held& held, std::int64_t n) noexcept {
        ring_.for_rows(first_, n, [&](std::int64_t row, std::int64_t count) {
            for (std::int64_t i = 0; i < count; ++i) header_.live -= ring_.tree_.priority(row + i) > 0.0f;
            held.fill(row, count, 0.0f);
        });
        std::atomic_ref(header_.writing[index_]).store(first_, std::memory_order_relaxed);
        header_.given.store(first_ + n, std::memory_order_relaxed);
    }

    ReplayRing& ring_;
    Header& header_;
    std::size_t index_ = 0;
    std::int64_t first_ = 0;
};

ReplayRing::Stream::Stream(std::int64_t num_envs, std::int64_t lookahead)
    : lookahead_(lookahead),
      newest_(static_cast<std::size_t>(num_envs), no_row),
      count_(static_cast<std::size_t>(num_envs), 0),
      waiting_(static_cast<std::size_t>(num_envs * (lookahead + 1))),
      given_(static_cast<std::size_t>(num_envs)) {}

void ReplayRing::Stream::forget() noexcept {
    std::fill(newest_.begin(), newest_.end(), no_row);
    std::fill(count_.begin(), count_.end(), 0);
}

std::size_t ReplayRing::tree_at() noexcept { return rounded_up(sizeof(Header), line_bytes); }

std::size_t ReplayRing::nbytes(const RingShape& shape) {
    check(shape);
    const std::size_t records = tree_at() + rounded_up(SumTree::nbytes(shape.capacity, shape.tree), line_bytes);
    return records + static_cast<std::size_t>(shape.capacity) * Layout(shape).stride;
}

ReplayRing::ReplayRing(void* memory, const RingShape& shape, const SumTree& tree)
    : shape_(shape), tree_(tree), header_(static_cast<Header*>(memory)) {
    Layout layout(shape);
    offsets_ = std::move(layout.offsets);
    flags_at_ = layout.flags_at;
    stride_ = layout.stride;
    prefetched_ = std::min(stride_, 4 * line_bytes);
    records_ = static_cast<std::byte*>(memory) + tree_at() +
               rounded_up(SumTree::nbytes(shape.capacity, shape.tree), line_bytes);
}

ReplayRing ReplayRing::initialise(void* memory, std::size_t size, const RingShape& shape) {
    const std::size_t needed = nbytes(shape);
    if (size < needed)
        throw std::invalid_argument("the memory has " + std::to_string(size) + " bytes; the ring needs " +
                                    std::to_string(needed));
    SumTree tree = SumTree::initialise(static_cast<std::byte*>(memory) + tree_at(), size - tree_at(), shape.capacity,
                                       shape.tree);
    auto* header = new (memory) Header{};
    for (Writer& writer : header->writers) writer.lock.initialise();
    std::fill(std::begin(header->writing), std::end(header->writing), nobody);
    header->digest = digest_of(shape);
    std::atomic_ref(header->magic).store(magic, std::memory_order_release);
    return {memory, shape, tree};
}

ReplayRing ReplayRing::attach(void* memory, std::size_t size, const RingShape& shape) {
    if (size < nbytes(shape)) throw std::invalid_argument("the memory is smaller than a replay of this shape");
    auto* header = static_cast<Header*>(memory);
    if (std::atomic_ref(header->magic).load(std::memory_order_acquire) != magic || header->digest != digest_of(shape))
        throw std::invalid_argument("there is no replay of this shape in this memory");
    return {memory, shape, SumTree::attach(static_cast<std::byte*>(memory) + tree_at(), size - tree_at())};
}

std::int64_t ReplayRing::lookahead() const noexcept {
    const bool any_next = std::any_of(shape_.fields.begin(), shape_.fields.end(), [](auto& f) { return f.has_next; });
    return shape_.linked ? shape_.n_step - 1 + any_next : 0;
}

std::int64_t ReplayRing::given() const noexcept { return header_->given.load(std::memory_order_relaxed); }

std::uint64_t ReplayRing::next_stream() noexcept { return header_->streams.fetch_add(1, std::memory_order_relaxed); }

void ReplayRing::count_again_after_repair(SumTree::Held&) noexcept {
    if (header_->counted_at_repair == tree_.repairs()) return;
    header_->live = 0;
    for (std::int64_t row = 0; row < shape_.capacity; ++row) header_->live += tree_.priority(row) > 0.0f;
    header_->counted_at_repair = tree_.repairs();
}

std::int64_t ReplayRing::live() {
    auto held = tree_.hold();
    count_again_after_repair(held);
    return header_->live;
}

void ReplayRing::prefetch_record(std::int64_t row) const noexcept {
    const std::byte* at = record(row);
    for (std::size_t i = 0; i < prefetched_; i += line_bytes) __builtin_prefetch(at + i);
}

std::int64_t ReplayRing::add(const std::byte* const* columns, std::int64_t n) {
    if (shape_.linked) throw std::invalid_argument("rows of this ring are steps of environments");
    if (n == 0) return given();
    const Writing writing(*this, n);
    std::int64_t done = 0;
    for_rows(writing.first(), n, [&](std::int64_t row, std::int64_t count) {
        for (std::size_t field = 0; field < shape_.fields.size(); ++field) {
            const std::size_t bytes = shape_.fields[field].bytes;
            const std::byte* from = columns[field] + static_cast<std::size_t>(done) * bytes;
            std::byte* to = record(row) + offsets_[field];
            for (std::int64_t i = 0; i < count; ++i, from += bytes, to += stride_) racing_store(to, from, bytes);
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
    if (!shape_.linked) throw std::invalid_argument("rows of this ring are no steps of environments");
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
        stream.forget();
        return 0;
    }
    const Writing writing(*this, num_rows + num_ends);
    const auto at = [](auto& of, std::int64_t env) -> auto& { return of[static_cast<std::size_t>(env)]; };

    std::int64_t ticket = writing.first(), last_ticket = writing.first() + num_rows;
    for (std::int64_t env = 0; env < num_envs; ++env) {
        at(stream.given_, env) = is_valid(env) ? ticket++ : no_row;
        if (is_valid(env)) __builtin_prefetch(record(row_of(ticket - 1)), 1);
    }
    for (std::size_t field = 0; field < shape_.fields.size(); ++field) {
        const std::size_t bytes = shape_.fields[field].bytes;
        for (std::int64_t env = 0; env < num_envs; ++env)
            if (is_valid(env))
                racing_store(record(row_of(at(stream.given_, env))) + offsets_[field],
                             step.columns[field] + static_cast<std::size_t>(env) * bytes, bytes);
    }
    const auto write_head = [&](std::int64_t row, std::int64_t next, std::uint8_t flags) {
        store_word<std::int64_t>(record(row), reinterpret_cast<const std::byte*>(&next));
        store_word<std::uint8_t>(record(row) + flags_at_, reinterpret_cast<const std::byte*>(&flags));
    };
    for (std::int64_t env = 0; env < num_envs; ++env) {
        if (!is_valid(env)) continue;
        const std::uint8_t flags = flags_of(env);
        const std::int64_t row = row_of(at(stream.given_, env));
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
                racing_store(record(last) + offsets_[field],
                             step.next_columns[field] + static_cast<std::size_t>(env) * bytes, bytes);
        }
    }

    auto held = tree_.hold();
    begin_change(held);
    const std::int64_t oldest = this->oldest();
    std::vector<std::int64_t> ready;  // rows of the steps that miss nothing now
    ready.reserve(static_cast<std::size_t>(num_envs));
    for (std::int64_t env = 0; env < num_envs; ++env) {
        auto &newest = at(stream.newest_, env), &count = at(stream.count_, env);
        if (!is_valid(env)) {
            newest = no_row;
            count = 0;
            continue;
        }
        const std::int64_t own = at(stream.given_, env);
        if (newest != no_row && newest >= oldest) {
            const std::int64_t row = row_of(own);
            store_word<std::int64_t>(record(row_of(newest)), reinterpret_cast<const std::byte*>(&row));
        }
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
        const std::vector<float> priorities(ready.size(), held.maximum());
        held.assign(ready.data(), priorities.data(), static_cast<std::int64_t>(ready.size()));
        header_->live += priorities[0] > 0.0f ? static_cast<std::int64_t>(ready.size()) : 0;
    }
    return num_rows + num_ends;
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
        held.find(residuals, count, rows);
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
        batch.reward[at] += static_cast<float>(gamma) * load<float>(from + reward_at);
        *then = load<std::int64_t>(from);
        if (*then != no_row) prefetch_record(*then);
        return load<std::uint8_t>(from + flags_at_);
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
    for (int round = 0; places.count > 0; ++round) {
        std::int64_t given_then;
        {
            // One look: sum, priorities, generation and number belong together.
            auto held = tree_.hold();
            count_again_after_repair(held);
            total = static_cast<double>(held.total());
            if (!(total > 0.0)) return false;
            draw(held, random, rule.stratified, batch.count, places);
            least = tree_.has_minimum() ? static_cast<double>(held.minimum()) : 0.0;
            num_live = header_->live;
            given_then = given();
            if (round >= unlocked_rounds) read();
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
    weigh(batch.weights, batch.count, rule.weights, rule.beta, {total, least, num_live}, batch.weights);
    return true;
}

std::int64_t ReplayRing::update(const std::int64_t* tickets, const float* priorities, std::int64_t n, double decay,
                                float least) {
    thread_local Places places;
    places.resize(n);
    std::int64_t* rows = places.rows.data();
    float* values = places.priorities.data();
    // A lap is subtracted, not divided by; tickets that this is wrong for are not there any more.
    const std::int64_t before = given(), lap = before - before % shape_.capacity;
    for (std::int64_t i = 0; i < n; ++i) {
        std::int64_t row = tickets[i] - lap;
        if (row < 0) row += shape_.capacity;
        if (row < 0 || row >= shape_.capacity) row = tickets[i] < 0 ? 0 : row_of(tickets[i]);
        rows[i] = row;
        tree_.prefetch(row);
    }
    auto held = tree_.hold();
    begin_change(held);
    held.decay_maximum(decay, least);
    const std::int64_t now = given(), oldest = this->oldest();
    std::int64_t kept = 0;
    for (std::int64_t i = 0; i < n; ++i) {
        if (tickets[i] < oldest || tickets[i] >= now || !(tree_.priority(rows[i]) > 0.0f)) continue;
        rows[kept] = rows[i];
        values[kept++] = priorities[i];
    }
    held.assign(rows, values, kept);
    return n - kept;
}

ReplayRing::Copied ReplayRing::copy_priorities(float* out) {
    constexpr std::int64_t block = 1 << 14;  // some ten microseconds
    Copied copied{};
    for (std::int64_t start = 0; start < shape_.capacity; start += block) {
        auto held = tree_.hold();
        if (start == 0) copied.given_before = given();
        for (std::int64_t row = start; row < std::min(start + block, shape_.capacity); ++row)
            out[row] = tree_.priority(row);
        copied.given_after = given();
        copied.maximum = held.maximum();
    }
    return copied;
}

void ReplayRing::flush() {
    auto held = tree_.hold();
    begin_change(held);
    write_through(header_, static_cast<std::size_t>(records_ - reinterpret_cast<std::byte*>(header_)) +
                               static_cast<std::size_t>(shape_.capacity) * stride_);
    header_->flushed = 1;
    write_through(header_, sizeof(Header));
}

void ReplayRing::take_flush_back() {
    header_->flushed = 0;
    write_through(header_, sizeof(Header));
}

bool ReplayRing::is_flushed() const noexcept { return header_->flushed != 0; }

void ReplayRing::free_locks() {
    tree_.free_lock();
    for (Writer& writer : header_->writers) writer.lock.initialise();
    std::fill(std::begin(header_->writing), std::end(header_->writing), nobody);
}

void ReplayRing::restore(std::int64_t given, const float* priorities, float maximum) {
    constexpr std::int64_t block = 4096;
    auto held = tree_.hold();
    begin_change(held);
    std::vector<std::int64_t> rows(static_cast<std::size_t>(block));
    header_->live = 0;
    for (std::int64_t start = 0; start < shape_.capacity; start += block) {
        const std::int64_t count = std::min(block, shape_.capacity - start);
        std::iota(rows.begin(), rows.begin() + count, start);
        held.assign(rows.data(), priorities + start, count);
        for (std::int64_t i = start; i < start + count; ++i) header_->live += priorities[i] > 0.0f;
    }
    held.set_maximum(maximum);
    const std::int64_t first = given - std::min(given, shape_.capacity);
    const auto lap = static_cast<std::size_t>(shape_.capacity);
    const auto behind = static_cast<std::size_t>(std::max(this->given() - first, std::int64_t{0}));
    const auto moved = static_cast<std::int64_t>(rounded_up(behind, lap));
    header_->restored_from = first + moved;
    header_->given.store(given + moved, std::memory_order_relaxed);
}

}  // namespace rollmill
