// Ways to keep a replay's users apart. Only `robust` is the product's; the others are here to be measured.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/sum_tree.h"

namespace rollmill::benchmarks {

// One way. Objects are made before the workers start and used by all of them; state lies in shared memory.
class ReplayLocking {
   public:
    virtual ~ReplayLocking() = default;

    // Takes the n rows from `first` out of the draw, has them written, gives them the maximum priority.
    virtual void insert(std::int64_t first, std::int64_t n, const std::function<void()>& write) = 0;
    // Draws leaves, and has their rows gathered.
    virtual void sample(Random& random, std::span<std::int64_t> leaves, std::span<float> priorities,
                        const std::function<void()>& gather) = 0;
    virtual void update(std::span<const std::int64_t> leaves, std::span<const float> priorities) = 0;
};

// Makes what `name` says, in `memory` of replay_locking_bytes:
//   none       no lock: what locks cost; several workers race, and draw rubbish now and then
//   robust     one robust lock around the tree, never held over data
//   nested     the paper's two: the tree's, and within it the leaves' (its Algorithm 3)
//   sharded    eight trees with a lock each
//   global     one lock around all of insertion (the write of the data, too) and sampling (the gather, too); what keeps
//              readers and writers of rows apart by a lock alone
//   over_write  one lock held over the write of the data, too, but not over the gather, which may then be torn
// Throws std::invalid_argument for other names.
std::unique_ptr<ReplayLocking> make_replay_locking(const std::string& name, void* memory, std::int64_t capacity);
std::size_t replay_locking_bytes(std::int64_t capacity);

// What sharding needs `capacity` to be a multiple of, in insertions.
constexpr std::int64_t num_shards = 8;

}  // namespace rollmill::benchmarks
