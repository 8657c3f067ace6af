// A replay ring's memory, updates and files; adding and drawing are in replay_ring_add.cpp and replay_ring_sample.cpp.
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

#include "core/errors.h"


namespace rollmill {
namespace {

constexpr std::uint64_t magic = 0x474e495259414c50;  // "PLAYRING"

constexpr std::size_t rounded_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

// Writes memory to its file, and waits until it is on the disk.
void write_through(void* memory, std::size_t bytes) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory);
    const auto ahead = address % static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    if (msync(reinterpret_cast<void*>(address - ahead), bytes + ahead, MS_SYNC) != 0)
        throw std::system_error(errno, std::generic_category(), "cannot write a replay's file to the disk");
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
        raise<std::invalid_argument>("n_step is ", shape.n_step, "; it must be 1 to ", ReplayRing::max_n_step);
    if (!(shape.discount >= 0.0 && shape.discount <= 1.0))
        raise<std::invalid_argument>("discount is ", shape.discount, "; it must be 0 to 1");
    const auto fields = static_cast<int>(shape.fields.size());
    if (shape.linked ? shape.reward < 0 || shape.reward >= fields ||
                           shape.fields[static_cast<std::size_t>(shape.reward)].bytes != sizeof(float)
                     : shape.n_step != 1 || shape.reward != -1)
        throw std::invalid_argument("linked rows need a reward of 4 bytes; others must have no reward, and n_step 1");
}

}  // namespace

RecordLayout::RecordLayout(const RingShape& shape) : offsets(shape.fields.size()) {
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

std::size_t ReplayRing::tree_at() noexcept { return rounded_up(sizeof(Header), line_bytes); }

std::size_t ReplayRing::nbytes(const RingShape& shape) {
    check(shape);
    const std::size_t before = tree_at() + rounded_up(SumTree::nbytes(shape.capacity, shape.tree), line_bytes);
    const RecordLayout record(shape);
    std::size_t records = 0, all = 0;
    if (__builtin_mul_overflow(static_cast<std::size_t>(shape.capacity), record.stride, &records) ||
        __builtin_add_overflow(before, records, &all))
        raise<std::invalid_argument>("capacity is ", shape.capacity, " and a transition has ", record.stride,
                                     " bytes, too many together; give a smaller capacity");
    return all;
}

ReplayRing::ReplayRing(void* memory, const RingShape& shape, const SumTree& tree)
    : shape_(shape),
      tree_(tree),
      header_(static_cast<Header*>(memory)),
      records_(static_cast<std::byte*>(memory) + tree_at() +
               rounded_up(SumTree::nbytes(shape.capacity, shape.tree), line_bytes)),
      layout_(shape),
      prefetched_(std::min(layout_.stride, 4 * line_bytes)) {}

ReplayRing ReplayRing::initialise(void* memory, std::size_t size, const RingShape& shape) {
    const std::size_t needed = nbytes(shape);
    if (size < needed)
        raise<std::invalid_argument>("the memory has ", size, " bytes; the ring needs ", needed);
    SumTree tree = SumTree::initialise(static_cast<std::byte*>(memory) + tree_at(), size - tree_at(), shape.capacity,
                                       shape.tree);
    auto* header = new (memory) Header{};
    for (Writer& writer : header->writers) writer.lock.initialise();
    std::fill(std::begin(header->writing), std::end(header->writing), no_ticket);
    header->digest = digest_of(shape);
    std::atomic_ref(header->magic).store(magic, std::memory_order_release);
    return {memory, shape, tree};
}

ReplayRing ReplayRing::attach(void* memory, std::size_t size, const RingShape& shape) {
    if (size < nbytes(shape))
        raise<std::invalid_argument>("the memory has ", size, " bytes; the ring needs ", nbytes(shape));
    auto* header = static_cast<Header*>(memory);
    if (std::atomic_ref(header->magic).load(std::memory_order_acquire) != magic || header->digest != digest_of(shape))
        throw std::invalid_argument("there is no replay of this shape in this memory; give the shape of its creation");
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

std::int64_t ReplayRing::update(std::span<const std::int64_t> tickets, std::span<const float> priorities, double decay,
                                float least) {
    thread_local std::vector<std::int64_t> own_rows;
    thread_local std::vector<float> own_values;
    own_rows.resize(tickets.size());
    own_values.resize(tickets.size());
    const std::span rows(own_rows);
    const std::span values(own_values);
    // A subtraction instead of a division gives the row of every ticket that can still be live.
    const std::int64_t before = given(), lap = before - before % shape_.capacity;
    for (std::size_t i = 0; i < tickets.size(); ++i) {
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
    std::size_t kept = 0;
    for (std::size_t i = 0; i < tickets.size(); ++i) {
        if (tickets[i] < oldest || tickets[i] >= now || !(tree_.priority(rows[i]) > 0.0f)) continue;
        rows[kept] = rows[i];
        values[kept++] = priorities[i];
    }
    held.assign(rows.first(kept), values.first(kept));
    return static_cast<std::int64_t>(tickets.size() - kept);
}

ReplayRing::Copied ReplayRing::copy_priorities(std::span<float> out) {
    constexpr std::int64_t block = 1 << 14;  // takes about ten microseconds
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
                               static_cast<std::size_t>(shape_.capacity) * layout_.stride);
    header_->flushed = 1;
    write_through(header_, sizeof(Header));
}

void ReplayRing::clear_flushed() {
    header_->flushed = 0;
    write_through(header_, sizeof(Header));
}

bool ReplayRing::is_flushed() const noexcept { return header_->flushed != 0; }

void ReplayRing::reset_locks() {
    tree_.reset_lock();
    for (Writer& writer : header_->writers) writer.lock.initialise();
    std::fill(std::begin(header_->writing), std::end(header_->writing), no_ticket);
}

void ReplayRing::restore(std::int64_t given, std::span<const float> priorities, float maximum) {
    constexpr std::int64_t block = 4096;
    auto held = tree_.hold();
    begin_change(held);
    std::vector<std::int64_t> rows(static_cast<std::size_t>(block));
    // In this order, so that if this process is killed in between, every row with a priority is what its ticket says.
    held.fill(0, shape_.capacity, 0.0f);
    header_->live = 0;
    const std::int64_t first = given - std::min(given, shape_.capacity);
    const auto lap = static_cast<std::size_t>(shape_.capacity);
    const auto behind = static_cast<std::size_t>(std::max(this->given() - first, std::int64_t{0}));
    const auto moved = static_cast<std::int64_t>(rounded_up(behind, lap));
    header_->restored_from = first + moved;
    header_->given.store(given + moved, std::memory_order_relaxed);
    for (std::int64_t start = 0; start < shape_.capacity; start += block) {
        const std::int64_t count = std::min(block, shape_.capacity - start);
        std::iota(rows.begin(), rows.begin() + count, start);
        held.assign(std::span(rows).first(count), priorities.subspan(start, count));
        for (std::int64_t i = start; i < start + count; ++i) header_->live += priorities[i] > 0.0f;
    }
    held.set_maximum(maximum);  // may have decayed below the largest priority
}

}  // namespace rollmill
