#include "core/sum_tree.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>

#include "core/errors.h"

namespace rollmill {
namespace {

constexpr std::uint64_t magic = 0x454552544d555357;  // "WSUMTREE"
constexpr std::uint32_t layout_version = 1;
constexpr std::int64_t line_floats = SumTree::alignment / sizeof(float);

// Floats of a level with this many nodes: whole groups, and whole lines.
std::int64_t padded(std::int64_t nodes, std::int64_t fanout) {
    const std::int64_t unit = std::max(fanout, line_floats);
    return (nodes + unit - 1) / unit * unit;
}

}  // namespace

std::size_t SumTree::nbytes(std::int64_t capacity, Options options) {
    if (capacity < 1 || capacity > max_capacity)
        raise<std::invalid_argument>("capacity is ", capacity, "; it must be 1 to ", max_capacity, " leaves");
    if (options.fanout < 2 || options.fanout > max_fanout ||
        !std::has_single_bit(static_cast<unsigned>(options.fanout)))
        raise<std::invalid_argument>("fanout is ", options.fanout, "; it must be a power of two from 2 to ", max_fanout,
                                     " (16 fills a cache line)");
    const std::int64_t fanout = options.fanout;
    const std::int64_t leaves = padded(capacity, fanout);
    std::int64_t inner = 0;
    std::int64_t nodes = capacity;
    do {
        nodes = (nodes + fanout - 1) / fanout;
        inner += padded(nodes, fanout);
    } while (nodes > 1);
    return sizeof(Header) + static_cast<std::size_t>(leaves + (options.minimum ? 2 : 1) * inner) * sizeof(float);
}

SumTree::SumTree(void* memory, std::int64_t capacity, Options options) noexcept
    : header_(static_cast<Header*>(memory)),
      kernels_(&sum_tree_kernels(best_instructions(), options.fanout)),
      capacity_(capacity),
      fanout_bits_(std::countr_zero(static_cast<unsigned>(options.fanout))) {
    const std::int64_t fanout = options.fanout;
    auto* at = reinterpret_cast<float*>(static_cast<std::byte*>(memory) + sizeof(Header));
    const auto add_level = [&](std::int64_t nodes) {
        nodes_[num_levels_] = nodes;
        levels_[num_levels_++] = at;
        at += padded(nodes, fanout);
    };
    std::int64_t nodes = capacity;
    add_level(nodes);
    do {
        nodes = (nodes + fanout - 1) / fanout;
        add_level(nodes);
    } while (nodes > 1);
    if (!options.minimum) return;
    minimums_[0] = levels_[0];
    for (int level = 1; level < num_levels_; ++level) minimums_[level] = levels_[level] + (at - levels_[1]);
}

SumTree SumTree::initialise(void* memory, std::size_t size, std::int64_t capacity, Options options) {
    const std::size_t needed = nbytes(capacity, options);
    if (size < needed)
        raise<std::invalid_argument>("the memory has ", size, " bytes; a tree of ", capacity, " leaves needs ", needed,
                                     " (see nbytes)");
    if (reinterpret_cast<std::uintptr_t>(memory) % alignment != 0)
        raise<std::invalid_argument>("the memory must start at a multiple of ", alignment, " bytes; an mmap does");
    std::memset(memory, 0, needed);
    auto* header = new (memory) Header{};
    header->lock.initialise();
    header->maximum.store(1.0f, std::memory_order_relaxed);
    header->fanout = static_cast<std::uint32_t>(options.fanout);
    header->capacity = capacity;
    header->minimum = options.minimum;
    header->version = layout_version;
    std::atomic_ref(header->magic).store(magic, std::memory_order_release);
    return {memory, capacity, options};
}

SumTree SumTree::attach(void* memory, std::size_t size) {
    if (size < sizeof(Header) || reinterpret_cast<std::uintptr_t>(memory) % alignment != 0)
        raise<std::invalid_argument>("there is no sum tree in this memory: it has ", size,
                                     " bytes, or does not start at a multiple of ", alignment);
    auto* header = static_cast<Header*>(memory);
    if (std::atomic_ref(header->magic).load(std::memory_order_acquire) != magic)
        throw std::invalid_argument("there is no sum tree in this memory; attach only after it was initialised");
    if (header->version != layout_version)
        raise<std::invalid_argument>("the sum tree has layout version ", header->version, ", this is version ",
                                     layout_version, "; all processes must run the same Rollmill");
    const Options options{.fanout = static_cast<int>(header->fanout), .minimum = header->minimum != 0};
    const std::size_t needed = nbytes(header->capacity, options);
    if (size < needed)
        raise<std::invalid_argument>("the memory has ", size, " bytes; the sum tree in it needs ", needed,
                                     "; map all of it");
    return {memory, header->capacity, options};
}

SumTree::Held SumTree::hold(double seconds) {
    const RobustLock::Acquired acquired = header_->lock.acquire(seconds);
    if (acquired == RobustLock::Acquired::timed_out)
        raise<std::runtime_error>("timed out acquiring the sum tree's lock after ", seconds,
                                  " s; look for a stopped process or thread");
    return Held(*this, acquired == RobustLock::Acquired::abandoned);
}

std::uint64_t SumTree::repairs() const noexcept { return header_->repairs.load(std::memory_order_relaxed); }

}  // namespace rollmill
