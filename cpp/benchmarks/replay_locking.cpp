#include "benchmarks/replay_locking.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <stdexcept>

namespace rollmill::benchmarks {
namespace {

class WithoutLock : public ReplayLocking {
   public:
    WithoutLock(void* memory, std::int64_t capacity)
        : tree_(SumTree::initialise(memory, SumTree::nbytes(capacity, {}), capacity, {})) {}

    void insert(std::int64_t first, std::int64_t n, const std::function<void()>& write) override {
        tree_.without_lock().fill(first, n, 0.0f);
        write();
        tree_.without_lock().fill(first, n, 1.0f);
    }
    void sample(Random& random, std::span<std::int64_t> leaves, std::span<float> priorities,
                const std::function<void()>& gather) override {
        tree_.without_lock().draw(random, false, leaves, priorities);
        gather();
    }
    void update(std::span<const std::int64_t> leaves, std::span<const float> priorities) override {
        tree_.without_lock().assign(leaves, priorities);
    }

   protected:
    SumTree tree_;
};

class Robust : public WithoutLock {
   public:
    using WithoutLock::WithoutLock;

    void insert(std::int64_t first, std::int64_t n, const std::function<void()>& write) override {
        tree_.hold().fill(first, n, 0.0f);
        write();
        tree_.hold().fill(first, n, 1.0f);
    }
    void sample(Random& random, std::span<std::int64_t> leaves, std::span<float> priorities,
                const std::function<void()>& gather) override {
        tree_.hold().draw(random, false, leaves, priorities);
        gather();
    }
    void update(std::span<const std::int64_t> leaves, std::span<const float> priorities) override {
        tree_.hold().assign(leaves, priorities);
    }
};

class OverWrite : public Robust {
   public:
    using Robust::Robust;

    void insert(std::int64_t first, std::int64_t n, const std::function<void()>& write) override {
        auto held = tree_.hold();
        write();
        held.fill(first, n, 1.0f);
    }
};

class Global : public OverWrite {
   public:
    using OverWrite::OverWrite;

    void sample(Random& random, std::span<std::int64_t> leaves, std::span<float> priorities,
                const std::function<void()>& gather) override {
        auto held = tree_.hold();
        held.draw(random, false, leaves, priorities);
        gather();
    }
};

// The leaves' lock is taken and released where Algorithm 3 does; the leaves are written just after, which no reader of
// single priorities is here to notice.
class Nested : public WithoutLock {
   public:
    Nested(void* memory, std::int64_t capacity)
        : WithoutLock(memory, capacity),
          locks_(reinterpret_cast<pthread_mutex_t*>(static_cast<std::byte*>(memory) + SumTree::nbytes(capacity, {}))) {
        pthread_mutexattr_t attributes;
        pthread_mutexattr_init(&attributes);
        pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
        for (int i = 0; i < 2; ++i) pthread_mutex_init(&locks_[i], &attributes);
        pthread_mutexattr_destroy(&attributes);
    }

    void insert(std::int64_t first, std::int64_t n, const std::function<void()>& write) override {
        change([&] { tree_.without_lock().fill(first, n, 0.0f); });
        write();
        change([&] { tree_.without_lock().fill(first, n, 1.0f); });
    }
    void sample(Random& random, std::span<std::int64_t> leaves, std::span<float> priorities,
                const std::function<void()>& gather) override {
        pthread_mutex_lock(&locks_[0]);
        tree_.without_lock().draw(random, false, leaves, priorities);
        pthread_mutex_unlock(&locks_[0]);
        gather();
    }
    void update(std::span<const std::int64_t> leaves, std::span<const float> priorities) override {
        change([&] { tree_.without_lock().assign(leaves, priorities); });
    }

   private:
    template <class Change>
    void change(Change&& apply) {
        pthread_mutex_lock(&locks_[0]);
        pthread_mutex_lock(&locks_[1]);
        pthread_mutex_unlock(&locks_[1]);
        apply();
        pthread_mutex_unlock(&locks_[0]);
    }

    pthread_mutex_t* locks_;
};

// Sums of several trees are read one after the other, so that draws follow no single state of the replay.
class Sharded : public ReplayLocking {
   public:
    Sharded(void* memory, std::int64_t capacity) : share_(capacity / num_shards) {
        const std::size_t size = SumTree::nbytes(share_, {});
        for (std::size_t i = 0; i < num_shards; ++i)
            trees_.push_back(SumTree::initialise(static_cast<std::byte*>(memory) + i * size, size, share_, {}));
    }

    void insert(std::int64_t first, std::int64_t n, const std::function<void()>& write) override {
        SumTree& tree = tree_of(first);
        tree.hold().fill(first % share_, n, 0.0f);
        write();
        tree.hold().fill(first % share_, n, 1.0f);
    }
    void sample(Random& random, std::span<std::int64_t> leaves, std::span<float> priorities,
                const std::function<void()>& gather) override {
        std::array<double, num_shards> ends{};
        double sum = 0.0;
        for (std::size_t i = 0; i < num_shards; ++i) ends[i] = sum += static_cast<double>(trees_[i].hold().total());
        std::array<std::size_t, num_shards> counts{};
        for (std::size_t i = 0; i < leaves.size(); ++i) {
            const double x = random.uniform() * sum;
            ++counts[static_cast<std::size_t>(std::upper_bound(ends.begin(), ends.end() - 1, x) - ends.begin())];
        }
        for (std::size_t i = 0; i < num_shards; ++i) {
            const auto own = leaves.first(counts[i]);
            trees_[i].hold().draw(random, false, own, priorities.first(counts[i]));
            for (std::int64_t& leaf : own) leaf += static_cast<std::int64_t>(i) * share_;
            leaves = leaves.subspan(counts[i]);
            priorities = priorities.subspan(counts[i]);
        }
        gather();
    }
    void update(std::span<const std::int64_t> leaves, std::span<const float> priorities) override {
        std::vector<std::int64_t> own;
        std::vector<float> values;
        own.reserve(leaves.size());
        values.reserve(leaves.size());
        for (std::int64_t shard = 0; shard < num_shards; ++shard) {
            own.clear();
            values.clear();
            for (std::size_t i = 0; i < leaves.size(); ++i) {
                if (leaves[i] / share_ != shard) continue;
                own.push_back(leaves[i] % share_);
                values.push_back(priorities[i]);
            }
            trees_[static_cast<std::size_t>(shard)].hold().assign(own, values);
        }
    }

   private:
    SumTree& tree_of(std::int64_t leaf) { return trees_[static_cast<std::size_t>(leaf / share_)]; }

    std::int64_t share_;
    std::vector<SumTree> trees_;
};

}  // namespace

std::size_t replay_locking_bytes(std::int64_t capacity) {
    return std::max(SumTree::nbytes(capacity, {}) + 2 * sizeof(pthread_mutex_t),
                    num_shards * SumTree::nbytes(capacity / num_shards, {}));
}

std::unique_ptr<ReplayLocking> make_replay_locking(const std::string& name, void* memory, std::int64_t capacity) {
    if (name == "none") return std::make_unique<WithoutLock>(memory, capacity);
    if (name == "robust") return std::make_unique<Robust>(memory, capacity);
    if (name == "nested") return std::make_unique<Nested>(memory, capacity);
    if (name == "sharded") return std::make_unique<Sharded>(memory, capacity);
    if (name == "global") return std::make_unique<Global>(memory, capacity);
    if (name == "over_write") return std::make_unique<OverWrite>(memory, capacity);
    throw std::invalid_argument("locking is '" + name +
                                "'; allowed: 'none', 'robust', 'nested', 'sharded', 'global', 'over_write'");
}

}  // namespace rollmill::benchmarks
