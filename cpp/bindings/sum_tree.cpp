// SumTree for Python: arguments are checked, then the GIL is released, then the tree's lock is taken.
#include "core/sum_tree.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>
#include <vector>

#include "bindings/buffers.h"
#include "bindings/priorities.h"

namespace rollmill {
namespace {

struct PySumTree {
    Buffer memory;
    SumTree tree;
};

Buffer float32_array(nb::handle object, const char* name, bool writable) {
    Buffer buffer(object, name, writable);
    if (buffer.format() != 'f' || buffer.ndim() != 1)
        raise_type_error(name, " must be a one-dimensional float32 array");
    return buffer;
}

void check_length(const Buffer& buffer, const char* name, std::int64_t expected, const char* other) {
    if (buffer.shape(0) != expected)
        raise_value_error(name, " has ", buffer.shape(0), " entries and ", other, " ", expected,
                          "; they must be the same");
}

std::string range(const SumTree& tree) {
    return "; this tree has leaves 0 to " + std::to_string(tree.capacity() - 1);
}

void check_leaves(const SumTree& tree, const Buffer& leaves) {
    const auto* leaf = leaves.data<std::int64_t>();
    for (std::int64_t i = 0; i < leaves.shape(0); ++i)
        if (leaf[i] < 0 || leaf[i] >= tree.capacity())
            raise_index_error("leaves[", i, "] is ", leaf[i], range(tree));
}

void check_span(const SumTree& tree, std::int64_t first, std::int64_t count) {
    // subtracted, not added: the sum of two large numbers could wrap
    if (first < 0 || count < 0 || count > tree.capacity() || first > tree.capacity() - count)
        raise_index_error("first is ", first, " and count ", count, range(tree));
}

void check_priority(const std::string& name, float priority) {
    if (first_invalid_priority({&priority, 1}) >= 0)
        raise_value_error(name, " is ", text(static_cast<double>(priority)), "; a priority must be 0 to 2^64");
}

void check_priorities(const Buffer& priorities) {
    const std::int64_t at = first_invalid_priority(priorities.span<float>());
    if (at >= 0) check_priority("priorities[" + std::to_string(at) + "]", priorities.data<float>()[at]);
}

void check_finite(double value, double least, const char* name) {
    if (!(value >= least && std::isfinite(value)))
        raise_value_error(name, " is ", text(value), "; it must be finite and at least ", text(least));
}

// Calls `work(held)` with the tree's lock and without the GIL.
template <class Work>
auto with_lock(PySumTree& self, Work&& work) {
    const nb::gil_scoped_release released;
    auto held = self.tree.hold();
    return work(held);
}

void assign(PySumTree& self, nb::handle leaves_array, nb::handle priorities_array) {
    const Buffer leaves = int64_array(leaves_array, "leaves", false);
    const Buffer priorities = float32_array(priorities_array, "priorities", false);
    check_length(priorities, "priorities", leaves.shape(0), "leaves");
    check_leaves(self.tree, leaves);
    check_priorities(priorities);
    with_lock(self, [&](auto& held) { held.assign(leaves.span<std::int64_t>(), priorities.span<float>()); });
}

void fill(PySumTree& self, std::int64_t first, std::int64_t count, std::optional<float> priority) {
    check_span(self.tree, first, count);
    if (priority) check_priority("priority", *priority);
    with_lock(self, [&](auto& held) { held.fill(first, count, priority ? *priority : held.maximum()); });
}

void update(PySumTree& self, nb::handle leaves_array, nb::handle td_errors_array, double alpha, double epsilon,
            double decay) {
    const Buffer leaves = int64_array(leaves_array, "leaves", false);
    const Buffer td_errors = float32_array(td_errors_array, "td_errors", false);
    check_length(td_errors, "td_errors", leaves.shape(0), "leaves");
    check_leaves(self.tree, leaves);
    if (!(decay > 0.0 && decay <= 1.0))
        raise_value_error("decay is ", text(decay), "; it must be above 0 and at most 1 (no decay)");
    check_finite(alpha, 0.0, "alpha");
    check_finite(epsilon, 0.0, "epsilon");
    const PriorityRule rule{.alpha = alpha, .epsilon = epsilon};
    const std::vector<float> priorities = checked_priorities(td_errors.span<float>(), rule);
    with_lock(self, [&](auto& held) {
        held.decay_maximum(decay, rule.least());
        held.assign(leaves.span<std::int64_t>(), priorities);
    });
}

Weights normalise_named(const std::string& name) {
    if (name == "batch") return Weights::batch;
    if (name == "global") return Weights::everything;
    if (name == "none") return Weights::none;
    raise_value_error("normalise is '", name, "'; allowed: 'batch', 'global', 'none'");
}

double sample(PySumTree& self, nb::handle random_array, nb::handle leaves_array, nb::handle priorities_array,
              nb::handle weights_array, double beta, const std::string& normalise_name,
              std::optional<std::int64_t> num_items, bool stratified) {
    const Buffer random_buffer(random_array, "random", true);
    if (random_buffer.nbytes() != sizeof(Random) || random_buffer.itemsize() != 8 ||
        (random_buffer.format() != 'L' && random_buffer.format() != 'Q'))
        raise_type_error("random must be a uint64 array of 2: seed and counter");
    const Buffer leaves = int64_array(leaves_array, "leaves", true);
    const Buffer priorities = float32_array(priorities_array, "priorities", true);
    const std::int64_t n = leaves.shape(0);
    check_length(priorities, "priorities", n, "leaves");
    std::optional<Buffer> weights;
    const Weights normalise = normalise_named(normalise_name);
    if (!weights_array.is_none()) {
        weights.emplace(float32_array(weights_array, "weights", true));
        check_length(*weights, "weights", n, "leaves");
        check_finite(beta, 0.0, "beta");
        if (normalise == Weights::everything && !self.tree.has_minimum())
            raise_value_error("normalise is 'global'; that needs a tree created with minimum=True");
        if (normalise == Weights::none && num_items.value_or(0) < 1)
            raise_value_error("num_items is ", (num_items ? std::to_string(*num_items) : "None"),
                              "; normalise='none' needs the number of items N >= 1 of the weights (N P / total)^-beta");
    }
    auto& random = *random_buffer.data<Random>();
    const nb::gil_scoped_release released;
    double total = 0.0;
    double least = 0.0;
    {
        auto held = self.tree.hold();
        if (!held.draw(random, stratified, leaves.span<std::int64_t>(), priorities.span<float>())) return 0.0;
        total = static_cast<double>(held.total());
        if (self.tree.has_minimum()) least = static_cast<double>(held.minimum());
    }
    if (weights && n > 0)
        weigh(priorities.span<float>(), normalise, beta, {total, least, num_items.value_or(0)}, weights->span<float>());
    return total;
}

bool find(PySumTree& self, nb::handle masses_array, nb::handle leaves_array) {
    const Buffer masses(masses_array, "masses", false);
    const Buffer leaves = int64_array(leaves_array, "leaves", true);
    if (masses.format() != 'd' || masses.ndim() != 1) raise_type_error("masses must be a one-dimensional float64 array");
    check_length(masses, "masses", leaves.shape(0), "leaves");
    std::vector<double> residuals(masses.data<double>(), masses.data<double>() + masses.shape(0));
    for (std::size_t i = 0; i < residuals.size(); ++i)
        if (!(residuals[i] >= 0.0))
            raise_value_error("masses[", i, "] is ", text(residuals[i]), "; it must be at least 0");
    return with_lock(self, [&](auto& held) {
        if (!(held.total() > 0.0f)) return false;
        held.find(residuals, leaves.span<std::int64_t>());
        return true;
    });
}

void copy_priorities(PySumTree& self, nb::handle out_array, std::int64_t first) {
    const Buffer out = float32_array(out_array, "out", true);
    check_span(self.tree, first, out.shape(0));
    with_lock(self, [&](auto&) {
        for (float& priority : out.span<float>()) priority = self.tree.priority(first++);
    });
}

double priority(const PySumTree& self, std::int64_t leaf) {
    if (leaf < 0 || leaf >= self.tree.capacity())
        raise_index_error("leaf is ", leaf, range(self.tree));
    return static_cast<double>(self.tree.priority(leaf));
}

void use_instructions(PySumTree& self, const std::string& most) {
    if (most == "scalar") return self.tree.use_instructions(Instructions::scalar);
    if (most == "avx2") return self.tree.use_instructions(Instructions::avx2);
    if (most == "avx512") return self.tree.use_instructions(Instructions::avx512);
    raise_value_error("instructions are '", most, "'; allowed: 'scalar', 'avx2', 'avx512'");
}

void construct(PySumTree* self, nb::handle memory, std::int64_t capacity, int fanout, bool minimum, bool create) {
    Buffer buffer(memory, "memory", true);
    const SumTree::Options options{.fanout = fanout, .minimum = minimum};
    const auto size = static_cast<std::size_t>(buffer.nbytes());
    const SumTree tree = create ? SumTree::initialise(buffer.data<void>(), size, capacity, options)
                                : SumTree::attach(buffer.data<void>(), size);
    if (tree.capacity() != capacity || tree.fanout() != fanout || tree.has_minimum() != minimum)
        raise_value_error("the sum tree was created with capacity ", tree.capacity(), ", fanout ", tree.fanout(),
                          (tree.has_minimum() ? ", with" : ", without"), " minimum, not with ", capacity, ", ", fanout,
                          (minimum ? ", with" : ", without"), "; attach with what it was created with");
    new (self) PySumTree{std::move(buffer), tree};
}

}  // namespace

void bind_sum_tree(nb::module_& m) {
    constexpr int fanout = SumTree::default_fanout;
    nb::class_<PySumTree>(m, "SumTree")
        .def("__init__", &construct, "memory"_a, "capacity"_a, "fanout"_a = fanout, nb::kw_only(), "minimum"_a = false,
             "create"_a)
        .def_static(
            "nbytes",
            [](std::int64_t capacity, int fanout, bool minimum) {
                return SumTree::nbytes(capacity, {.fanout = fanout, .minimum = minimum});
            },
            "capacity"_a, "fanout"_a = fanout, "minimum"_a = false)
        .def_prop_ro("capacity", [](const PySumTree& self) { return self.tree.capacity(); })
        .def_prop_ro("fanout", [](const PySumTree& self) { return self.tree.fanout(); })
        .def_prop_ro("repairs", [](const PySumTree& self) { return self.tree.repairs(); })
        .def_prop_rw(
            "max_priority",
            [](PySumTree& self) {
                return static_cast<double>(with_lock(self, [](auto& held) { return held.maximum(); }));
            },
            [](PySumTree& self, float priority) {
                check_priority("max_priority", priority);
                with_lock(self, [&](auto& held) { held.set_maximum(priority); });
            })
        .def("assign", &assign, "leaves"_a, "priorities"_a)
        .def("fill", &fill, "first"_a, "count"_a, "priority"_a = nb::none())
        .def("update", &update, "leaves"_a, "td_errors"_a, nb::kw_only(), "alpha"_a, "epsilon"_a, "decay"_a = 1.0)
        .def("sample", &sample, "random"_a, "leaves"_a, "priorities"_a, "weights"_a = nb::none(), nb::kw_only(),
             "beta"_a = 0.0, "normalise"_a = "batch", "num_items"_a = nb::none(), "stratified"_a = false)
        .def("find", &find, "masses"_a, "leaves"_a)
        .def("total",
             [](PySumTree& self) { return static_cast<double>(with_lock(self, [](auto& held) { return held.total(); })); })
        .def("minimum",
             [](PySumTree& self) {
                 if (!self.tree.has_minimum()) raise_value_error("this tree was created without minimum=True");
                 return static_cast<double>(with_lock(self, [](auto& held) { return held.minimum(); }));
             })
        .def("priority", &priority, "leaf"_a)
        .def("priorities", &copy_priorities, "out"_a, "first"_a = 0)
        .def("rebuild", [](PySumTree& self) { with_lock(self, [](auto& held) { held.rebuild(); }); })
        .def("verify", [](PySumTree& self) { return with_lock(self, [](auto& held) { return held.verify(); }); })
        .def("use_instructions", &use_instructions, "most"_a);
}

}  // namespace rollmill
