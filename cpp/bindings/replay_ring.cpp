// ReplayRing for Python: one call for each operation. Arguments that are not exactly as declared are returned to
// Python, which converts or refuses them, so that the fast path checks little.
#include "core/replay_ring.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <pthread.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/buffers.h"
#include "bindings/priorities.h"

namespace rollmill {
namespace {

using FieldTuple = std::tuple<std::string, std::vector<std::int64_t>, bool>;  // format, shape of a row, has a next

// Batches whose arrays are kept for reuse. A caller that holds more gets new ones each time.
constexpr std::size_t max_pooled = 16;

// Children of fork() must not continue the parent's streams.
std::uint64_t forks = 0;

struct Field {
    std::string format;
    std::vector<std::int64_t> row;  // shape of one
};

// Memory of an argument, or nothing if it is not a C-contiguous array of rows like these.
class Column {
   public:
    Column() = default;
    Column(Column&& other) noexcept : view_(std::exchange(other.view_, Py_buffer{})) {}
    Column(const Column&) = delete;
    Column& operator=(const Column&) = delete;
    ~Column() { PyBuffer_Release(&view_); }

    // rows < 0: any number.
    bool take(nb::handle object, const char* format, std::span<const std::int64_t> row, std::int64_t rows) {
        if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) != 0) {
            PyErr_Clear();
            view_ = {};
            return false;
        }
        if (view_.format == nullptr || std::strcmp(view_.format, format) != 0) return false;
        if (view_.ndim != 1 + static_cast<int>(row.size()) || !std::equal(row.begin(), row.end(), view_.shape + 1))
            return false;
        return rows < 0 || view_.shape[0] == rows;
    }
    std::int64_t rows() const noexcept { return view_.shape[0]; }
    const std::byte* data() const noexcept { return static_cast<const std::byte*>(view_.buf); }
    template <class T>
    std::span<const T> span() const noexcept {
        return {static_cast<const T*>(view_.buf), static_cast<std::size_t>(view_.len) / sizeof(T)};
    }

   private:
    Py_buffer view_{};
};

// Arrays that batches are drawn into whenever no caller holds them.
struct Pooled {
    nb::object batch;
    std::vector<std::pair<PyObject*, Py_ssize_t>> watched;  // and their reference counts when no caller does
    std::vector<Buffer> memory;
    std::optional<ReplayRing::Batch> drawn;

    bool is_free() const noexcept {
        return std::all_of(watched.begin(), watched.end(), [](auto& w) { return Py_REFCNT(w.first) <= w.second; });
    }
};

struct PyRingShape {
    RingShape shape;
    std::vector<Field> fields;
};

struct PyReplayRing {
    PyReplayRing(Buffer held, const ReplayRing& core, std::vector<Field> all, std::int64_t envs, std::uint64_t first_seed,
                 bool is_shared)
        : memory(std::move(held)),
          ring(core),
          fields(std::move(all)),
          stream(envs, core.lookahead()),
          seed(first_seed),
          shared(is_shared),
          fork(forks) {
        begin_stream();
    }

    void begin_stream() noexcept { own_seed = Random{seed, ring.next_stream()}.bits(); }

    // With the GIL. Raises ValueError in a forked child that has but a copy.
    void notice_fork() {
        if (fork == forks) return;
        if (!shared)
            raise_value_error("this replay was made with shared=False, and a forked child has only a copy; leave "
                              "shared=False out, or make it in the child");
        fork = forks;
        stream.interrupt();
        new (&mutex) std::mutex;  // its holder is not in this process
        begin_stream();
    }

    Buffer memory;
    ReplayRing ring;
    std::vector<Field> fields;
    ReplayRing::Stream stream;
    std::mutex mutex;  // of the stream
    std::uint64_t seed, own_seed = 0, calls = 0;
    bool shared;  // with forked children
    std::uint64_t fork;
    std::vector<std::shared_ptr<Pooled>> pool;  // the one made last at the end

    DrawRule rule;
    PriorityRule priorities;
    double decay = 1.0;
    float least_priority = 0.0f;
};

void construct_shape(PyRingShape* self, std::int64_t capacity, const std::vector<FieldTuple>& fields, bool linked,
                     int reward, std::int64_t n_step, double discount, int fanout, bool minimum) {
    PyRingShape shape{{.capacity = capacity,
                       .fields = {},
                       .linked = linked,
                       .reward = reward,
                       .n_step = n_step,
                       .discount = discount,
                       .tree = {.fanout = fanout, .minimum = minimum}},
                      {}};
    for (const auto& [format, row, has_next] : fields) {
        Py_ssize_t bytes = PyBuffer_SizeFromFormat(format.c_str());
        if (bytes < 0) throw nb::python_error();
        for (const std::int64_t axis : row) bytes *= axis;
        shape.shape.fields.push_back({static_cast<std::size_t>(bytes), has_next});
        shape.fields.push_back({format, row});
    }
    new (self) PyRingShape(std::move(shape));
}

void construct(PyReplayRing* self, nb::handle memory, const PyRingShape& shape, std::int64_t num_envs,
               std::uint64_t seed, bool shared, bool create) {
    Buffer buffer(memory, "memory", true);
    const auto size = static_cast<std::size_t>(buffer.nbytes());
    const ReplayRing ring = create ? ReplayRing::initialise(buffer.data<void>(), size, shape.shape)
                                   : ReplayRing::attach(buffer.data<void>(), size, shape.shape);
    new (self) PyReplayRing(std::move(buffer), ring, shape.fields, num_envs, seed, shared);
}

void configure(PyReplayRing& self, double alpha, double epsilon, double decay, const std::string& weights,
               bool stratified) {
    self.priorities = {.alpha = alpha, .epsilon = epsilon};
    self.least_priority = self.priorities.least();
    self.decay = decay;
    self.rule.stratified = stratified;
    self.rule.weights = weights_named(weights);
}

// Appends the memory of these arrays, one for each field, or for each that has a next (null for the others); false if
// one is not as declared.
bool take_columns(const PyReplayRing& self, nb::tuple arrays, bool of_next, std::int64_t rows, std::vector<Column>& held,
                  std::vector<const std::byte*>& data) {
    std::size_t taken = 0;
    for (std::size_t i = 0; i < self.fields.size(); ++i) {
        data.push_back(nullptr);
        if (of_next && !self.ring.shape().fields[i].has_next) continue;
        if (taken == arrays.size()) return false;
        Column& column = held.emplace_back();
        const Field& field = self.fields[i];
        if (!column.take(arrays[taken++], field.format.c_str(), field.row, rows)) return false;
        if (rows < 0) rows = column.rows();
        data.back() = column.data();
    }
    return taken == arrays.size();
}

// Transitions that follow nothing; returns how many, or -1.
std::int64_t add(PyReplayRing& self, nb::tuple arrays) {
    self.notice_fork();
    std::vector<Column> held;
    held.reserve(self.fields.size());
    std::vector<const std::byte*> columns;
    columns.reserve(self.fields.size());
    if (!take_columns(self, arrays, false, -1, held, columns)) return -1;
    const std::int64_t n = held[0].rows();
    const nb::gil_scoped_release released;
    self.ring.add(columns, n);
    return n;
}

// A step of every environment; returns how many rows it took, or -1.
std::int64_t add_step(PyReplayRing& self, nb::tuple arrays, nb::tuple next_arrays, nb::handle terminated,
                      nb::handle truncated, nb::handle valid) {
    self.notice_fork();
    const std::int64_t n = self.stream.num_envs();
    std::vector<Column> held;
    held.reserve(2 * self.fields.size() + 3);
    std::vector<const std::byte*> columns, next_columns;
    columns.reserve(self.fields.size());
    next_columns.reserve(self.fields.size());
    if (!take_columns(self, arrays, false, n, held, columns) ||
        !take_columns(self, next_arrays, true, n, held, next_columns))
        return -1;
    const std::uint8_t* flags[3] = {};
    const nb::handle given[3] = {terminated, truncated, valid};
    for (std::size_t i = 0; i < 3; ++i) {
        if (given[i].is_none()) continue;
        Column& column = held.emplace_back();
        if (!column.take(given[i], "?", {}, n)) return -1;
        flags[i] = reinterpret_cast<const std::uint8_t*>(column.data());
    }
    const nb::gil_scoped_release released;
    const std::lock_guard guard(self.mutex);
    try {
        return self.ring.add(self.stream, {columns, next_columns, flags[0], flags[1], flags[2]});
    } catch (...) {
        self.stream.interrupt();
        throw;
    }
}

template <class T>
std::span<T> pooled_array(Pooled& pooled, nb::handle array, const char* name) {
    if (array.is_none()) return {};
    pooled.watched.emplace_back(array.ptr(), 0);
    return pooled.memory.emplace_back(array, name, true).span<T>();
}

// `returns` are reward, discount and terminated, or empty.
void adopt(PyReplayRing& self, nb::object batch, nb::list watched, nb::handle tickets, nb::handle weights,
           nb::tuple returns, nb::tuple columns, nb::tuple next_columns) {
    auto pooled = std::make_shared<Pooled>();
    pooled->memory.reserve(5 + columns.size() + next_columns.size());
    ReplayRing::BatchArrays arrays{.tickets = pooled_array<std::int64_t>(*pooled, tickets, "tickets"),
                                   .weights = pooled_array<float>(*pooled, weights, "weights")};
    if (returns.size() == 3) {
        arrays.reward = pooled_array<float>(*pooled, returns[0], "reward");
        arrays.discount = pooled_array<float>(*pooled, returns[1], "discount");
        arrays.terminated = pooled_array<std::uint8_t>(*pooled, returns[2], "terminated");
    }
    std::vector<std::byte*> to, next_to;
    for (const nb::handle array : columns) to.push_back(pooled_array<std::byte>(*pooled, array, "column").data());
    for (const nb::handle array : next_columns)
        next_to.push_back(pooled_array<std::byte>(*pooled, array, "next column").data());
    pooled->drawn.emplace(self.ring, arrays, to, next_to);
    // Each array is held by the batch and by its buffer here, the batch by this entry, what it holds besides by it.
    for (auto& [object, references] : pooled->watched) references = 2;
    for (const nb::handle object : watched) pooled->watched.emplace_back(object.ptr(), 1);
    pooled->watched.emplace_back(batch.ptr(), 1);
    pooled->batch = std::move(batch);
    if (self.pool.size() == max_pooled) self.pool.erase(self.pool.begin());
    self.pool.push_back(std::move(pooled));
}

void check_beta(double beta) {
    if (!(beta >= 0.0 && std::isfinite(beta)))
        raise_value_error("beta is ", text(beta), "; it must be finite and at least 0 (0: all weights are 1)");
}

// The batch; None when all of this size are in use; False when there is nothing to draw.
nb::object sample(PyReplayRing& self, std::int64_t count, double beta) {
    self.notice_fork();
    check_beta(beta);
    const auto free = std::find_if(self.pool.begin(), self.pool.end(), [&](const auto& pooled) {
        return pooled->drawn->size() == count && pooled->is_free();
    });
    if (free == self.pool.end()) return nb::none();
    const std::shared_ptr<Pooled> chosen = *free;
    nb::object batch = chosen->batch;  // in use from now on
    Random random{Random{self.own_seed, self.calls++}.bits(), 0};
    DrawRule rule = self.rule;
    rule.beta = beta;
    bool drawn;
    {
        const nb::gil_scoped_release released;
        drawn = self.ring.sample(random, rule, *chosen->drawn);
    }
    return drawn ? batch : nb::bool_(false);
}

std::int64_t update(PyReplayRing& self, nb::handle tickets_array, nb::handle values_array, bool are_priorities) {
    self.notice_fork();
    Column tickets, values;
    if (!tickets.take(tickets_array, "l", {}, -1)) return -1;
    if (!values.take(values_array, "f", {}, tickets.rows())) return -1;
    auto value = values.span<float>();
    std::vector<float> priorities;
    if (are_priorities) {
        for (std::size_t i = 0; i < value.size(); ++i)
            if (!(value[i] > 0.0f && value[i] <= SumTree::largest_priority))
                raise_value_error("priorities[", i, "] is ", text(static_cast<double>(value[i])),
                                  "; a priority must be above 0 and at most 2^64. Nothing was updated");
    } else {
        priorities = checked_priorities(value, self.priorities);
        value = priorities;
    }
    const nb::gil_scoped_release released;
    return self.ring.update(tickets.span<std::int64_t>(), value, self.decay, self.least_priority);
}

// Calls `work(ring)` without the GIL: for whatever waits for a lock, or reads every row.
template <class Work>
auto with_ring(PyReplayRing& self, Work&& work) {
    self.notice_fork();
    const nb::gil_scoped_release released;
    return work(self.ring);
}

void restore(PyReplayRing& self, std::int64_t given, nb::handle priorities_array, float maximum) {
    const Buffer priorities(priorities_array, "priorities", false);
    if (priorities.format() != 'f' || priorities.ndim() != 1 || priorities.shape(0) != self.ring.shape().capacity)
        raise_value_error("priorities must be a float32 array with an entry for each row");
    if (given < 0 || !(maximum > 0.0f && maximum <= SumTree::largest_priority) ||
        first_invalid_priority(priorities.span<float>()) >= 0)
        raise_value_error("given must not be negative, the maximum above 0 and at most 2^64, and priorities 0 to 2^64");
    with_ring(self, [&](ReplayRing& ring) { ring.restore(given, priorities.span<float>(), maximum); });
}

}  // namespace

void bind_replay_ring(nb::module_& m) {
    pthread_atfork(nullptr, nullptr, [] { ++forks; });
    nb::class_<PyRingShape>(m, "RingShape")
        .def("__init__", &construct_shape, nb::kw_only(), "capacity"_a, "fields"_a, "linked"_a, "reward"_a, "n_step"_a,
             "discount"_a, "fanout"_a, "minimum"_a)
        .def_prop_ro("nbytes", [](const PyRingShape& self) { return ReplayRing::nbytes(self.shape); });
    nb::class_<PyReplayRing>(m, "ReplayRing")
        .def("__init__", &construct, "memory"_a, "shape"_a, nb::kw_only(), "num_envs"_a, "seed"_a, "shared"_a, "create"_a)
        .def("configure", &configure, nb::kw_only(), "alpha"_a, "epsilon"_a, "decay"_a, "weights"_a, "stratified"_a)
        .def("add", &add, "columns"_a)
        .def("add_step", &add_step, "columns"_a, "next_columns"_a, "terminated"_a, "truncated"_a.none(), "valid"_a.none())
        .def("interrupt",
             [](PyReplayRing& self) {
                 with_ring(self, [&](ReplayRing&) {
                     const std::lock_guard guard(self.mutex);
                     self.stream.interrupt();
                 });
             })
        .def("adopt", &adopt, "batch"_a, "watched"_a, "tickets"_a, "weights"_a, "returns"_a, "columns"_a,
             "next_columns"_a)
        .def("sample", &sample, "batch_size"_a, "beta"_a)
        .def("update", &update, "tickets"_a.none(), "values"_a.none(), "are_priorities"_a = false)
        .def("restore", &restore, "given"_a, "priorities"_a, "maximum"_a)
        .def("flush", [](PyReplayRing& self) { with_ring(self, [](ReplayRing& ring) { ring.flush(); }); })
        .def("check_process", [](PyReplayRing& self) { self.notice_fork(); })
        .def("reset_locks", [](PyReplayRing& self) { self.ring.reset_locks(); })
        .def_prop_ro("is_flushed", [](const PyReplayRing& self) { return self.ring.is_flushed(); })
        .def("priorities",
             [](PyReplayRing& self, nb::handle out_array) {
                 const Buffer out(out_array, "out", true);
                 if (out.format() != 'f' || out.ndim() != 1 || out.shape(0) != self.ring.shape().capacity)
                     raise_value_error("out must be a float32 array with an entry for each row");
                 const auto copied =
                     with_ring(self, [&](ReplayRing& ring) { return ring.copy_priorities(out.span<float>()); });
                 return std::make_tuple(copied.given_before, copied.given_after, static_cast<double>(copied.maximum));
             }, "out"_a)
        .def("verify",
             [](PyReplayRing& self) {
                 return with_ring(self, [](ReplayRing& ring) { return ring.tree().hold().verify(); });
             })
        .def_prop_ro("given", [](const PyReplayRing& self) { return self.ring.given(); })
        .def_prop_ro("live",
                     [](PyReplayRing& self) { return with_ring(self, [](ReplayRing& ring) { return ring.live(); }); })
        .def_prop_ro("max_priority",
                     [](PyReplayRing& self) {
                         return with_ring(self, [](ReplayRing& ring) { return ring.tree().hold().maximum(); });
                     })
        .def_prop_ro("lookahead", [](const PyReplayRing& self) { return self.ring.lookahead(); })
        .def_prop_ro("stride", [](const PyReplayRing& self) { return self.ring.stride(); })
        .def_prop_ro("records_at", [](const PyReplayRing& self) {
            return self.ring.records() - self.memory.data<std::byte>();
        });
}

}  // namespace rollmill
