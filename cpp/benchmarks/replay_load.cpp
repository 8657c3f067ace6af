#include "benchmarks/replay_load.h"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <csignal>
#include <cstring>
#include <new>
#include <stdexcept>
#include <thread>

#include "benchmarks/replay_locking.h"
#include "core/futex.h"
#include "core/rows.h"

namespace rollmill::benchmarks {
namespace {

enum Operation { insert, sample, update, num_operations };
constexpr std::array<const char*, num_operations> names{"insert", "sample", "update"};

// Counts of durations, 16 buckets for each doubling of nanoseconds.
struct Histogram {
    static constexpr std::size_t steps = 16;
    std::array<std::int64_t, 40 * steps> counts;

    void add(double seconds) {
        const double octaves = std::log2(std::max(seconds * 1e9, 1.0));
        ++counts[std::min(static_cast<std::size_t>(octaves * steps), counts.size() - 1)];
    }
    std::int64_t total() const {
        std::int64_t sum = 0;
        for (const std::int64_t count : counts) sum += count;
        return sum;
    }
    double microseconds(double quantile) const {
        const double wanted = quantile * static_cast<double>(total());
        std::int64_t seen = 0;
        for (std::size_t i = 0; i < counts.size(); ++i) {
            seen += counts[i];
            if (static_cast<double>(seen) >= wanted) return 1e-3 * std::exp2((static_cast<double>(i) + 0.5) / steps);
        }
        return 0.0;
    }
};

// Zeroed memory that forked workers share.
class Shared {
   public:
    explicit Shared(std::size_t size)
        : size_(size), data_(mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
        if (data_ == MAP_FAILED) throw std::bad_alloc();
    }
    ~Shared() { munmap(data_, size_); }
    Shared(const Shared&) = delete;
    Shared& operator=(const Shared&) = delete;
    template <class T>
    T* as() const {
        return static_cast<T*>(data_);
    }

   private:
    std::size_t size_;
    void* data_;
};

struct Control {
    std::atomic<int> ready;
    std::atomic<bool> go;
    std::atomic<std::int64_t> inserted;  // insertions begun
};

struct Worker {
    Histogram histograms[num_operations];
};

struct Replay {
    const ReplayLoad& load;
    ReplayLocking& locking;
    std::byte* data;
    Control& control;

    // Insertions go round the shards, as they would have to; for a single tree one order is as good as another.
    std::int64_t next_place() const {
        const std::int64_t insertion = control.inserted.fetch_add(1);
        const std::int64_t share = load.capacity / num_shards;
        return insertion % num_shards * share + insertion / num_shards * load.insert_rows % share;
    }

    void insert_rows(const std::vector<std::byte>& rows) const {
        const std::int64_t first = next_place();
        const auto row_bytes = static_cast<std::size_t>(load.row_bytes);
        locking.insert(first, load.insert_rows, [&] {
            std::memcpy(data + static_cast<std::size_t>(first) * row_bytes, rows.data(), rows.size());
        });
    }

    void work(std::uint64_t seed, Worker& worker) const {
        const auto n = static_cast<std::size_t>(load.batch);
        const auto row_bytes = static_cast<std::size_t>(load.row_bytes);
        Random random{seed, 0};
        std::vector<std::int64_t> leaves(n);
        std::vector<float> priorities(n);
        std::vector<std::byte> batch(n * row_bytes);
        const std::vector<std::byte> rows(static_cast<std::size_t>(load.insert_rows) * row_bytes);
        control.ready.fetch_add(1);
        while (!control.go.load()) std::this_thread::yield();
        const double end = monotonic_seconds() + load.seconds;
        for (double start = monotonic_seconds(); start < end;) {
            const auto timed = [&](Operation operation, auto&& run) {
                run();
                const double now = monotonic_seconds();
                worker.histograms[operation].add(now - start);
                start = now;
            };
            timed(insert, [&] { insert_rows(rows); });
            timed(sample, [&] {
                locking.sample(random, leaves, priorities, [&] { gather_rows(batch.data(), data, leaves, row_bytes); });
            });
            for (float& priority : priorities) priority = static_cast<float>(random.uniform() + 1e-3);
            start = monotonic_seconds();
            timed(update, [&] { locking.update(leaves, priorities); });
        }
    }
};

void check(const ReplayLoad& load) {
    const std::int64_t unit = load.insert_rows * num_shards;
    if (load.num_workers < 1 || !(load.seconds > 0) || load.row_bytes < 1 || load.insert_rows < 1 || load.batch < 1)
        throw std::invalid_argument("num_workers, seconds, row_bytes, insert_rows and batch must all be above 0");
    if (load.capacity < unit || load.capacity % unit != 0)
        throw std::invalid_argument("capacity is " + std::to_string(load.capacity) + "; it must be a multiple of " +
                                    std::to_string(unit) + ", the rows of an insertion into each shard");
}

void run_in_threads(const Replay& replay, Worker* workers) {
    std::vector<std::thread> threads;
    for (int i = 0; i < replay.load.num_workers; ++i)
        threads.emplace_back([&replay, workers, i] { replay.work(static_cast<std::uint64_t>(i), workers[i]); });
    while (replay.control.ready.load() < replay.load.num_workers) std::this_thread::yield();
    replay.control.go.store(true);
    for (std::thread& thread : threads) thread.join();
}

void run_in_processes(const Replay& replay, Worker* workers) {
    std::vector<pid_t> children;
    for (int i = 0; i < replay.load.num_workers; ++i) {
        const pid_t child = fork();
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            replay.work(static_cast<std::uint64_t>(i), workers[i]);
            _exit(0);
        }
        if (child < 0) {
            for (const pid_t started : children) kill(started, SIGKILL);
            for (const pid_t started : children) waitpid(started, nullptr, 0);
            throw std::runtime_error("fork failed; fewer workers may do");
        }
        children.push_back(child);
    }
    while (replay.control.ready.load() < replay.load.num_workers) std::this_thread::yield();
    replay.control.go.store(true);
    for (const pid_t child : children) waitpid(child, nullptr, 0);
}

}  // namespace

std::vector<OperationReport> run_replay_load(const ReplayLoad& load) {
    check(load);
    const Shared tree_memory(replay_locking_bytes(load.capacity));
    const Shared data(static_cast<std::size_t>(load.capacity) * static_cast<std::size_t>(load.row_bytes));
    const Shared control_memory(sizeof(Control));
    const Shared worker_memory(static_cast<std::size_t>(load.num_workers) * sizeof(Worker));
    const auto locking = make_replay_locking(load.locking, tree_memory.as<void>(), load.capacity);
    const Replay replay{load, *locking, data.as<std::byte>(), *new (control_memory.as<void>()) Control{}};
    auto* workers = worker_memory.as<Worker>();
    const std::vector<std::byte> rows(static_cast<std::size_t>(load.insert_rows * load.row_bytes));
    for (std::int64_t i = 0; i < load.capacity / load.insert_rows; ++i) replay.insert_rows(rows);
    load.processes ? run_in_processes(replay, workers) : run_in_threads(replay, workers);
    std::vector<OperationReport> reports;
    for (int operation = 0; operation < num_operations; ++operation) {
        Histogram all{};
        for (int i = 0; i < load.num_workers; ++i)
            for (std::size_t j = 0; j < all.counts.size(); ++j)
                all.counts[j] += workers[i].histograms[operation].counts[j];
        reports.push_back({names[static_cast<std::size_t>(operation)], all.total(), all.microseconds(0.5),
                           all.microseconds(0.99), all.microseconds(0.999)});
    }
    return reports;
}

}  // namespace rollmill::benchmarks
