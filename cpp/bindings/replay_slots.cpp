// ReplaySlots for Python: arguments are checked, then the GIL is released, then the tree's lock is taken.
#include "core/replay_slots.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <numeric>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/buffers.h"
#include "bindings/priorities.h"

namespace rollmill {
namespace {

struct PyReplaySlots {
    PyReplaySlots(std::vector<Buffer> held, std::vector<SumTree> views, const ReplayShape& shape,
                  const ReplayArrays& arrays)
        : memory(std::move(held)), trees(std::move(views)), slots(trees, shape, arrays) {}
    PyReplaySlots(const PyReplaySlots&) = delete;  // what it holds cannot be copied
    PyReplaySlots& operator=(const PyReplaySlots&) = delete;

    std::vector<Buffer> memory;
    std::vector<SumTree> trees;
    ReplaySlots slots;
};

std::int64_t leaves_of(const ReplayShape& shape) { return shape.num_slots * shape.steps * shape.rows; }

const Buffer& hold(std::vector<Buffer>& memory, nb::handle object, const char* name, bool writable,
                   const std::vector<std::int64_t>& shape, std::int64_t itemsize) {
    Buffer buffer(object, name, writable);
    bool fits = buffer.ndim() == static_cast<int>(shape.size()) && buffer.itemsize() == itemsize;
    for (std::size_t axis = 0; fits && axis < shape.size(); ++axis)
        fits = buffer.shape(static_cast<int>(axis)) == shape[axis];
    if (!fits) {
        std::string expected;
        for (const std::int64_t axis : shape) expected += (expected.empty() ? "" : ", ") + std::to_string(axis);
        raise_value_error(name, " must be of shape [", expected, "] and of ", itemsize, " byte(s) an item");
    }
    memory.push_back(std::move(buffer));
    return memory.back();
}

// The trees over the slots of several policies, or the only one.
std::vector<SumTree> attach_trees(const std::vector<nb::object>& tree_memory, std::vector<Buffer>& memory) {
    if (tree_memory.empty()) raise_value_error("trees is empty; give the memory of each policy's tree");
    std::vector<SumTree> trees;
    for (const nb::object& of_policy : tree_memory) {
        Buffer buffer(of_policy, "tree", true);
        trees.push_back(SumTree::attach(buffer.data<void>(), static_cast<std::size_t>(buffer.nbytes())));
        memory.push_back(std::move(buffer));
        if (trees.back().capacity() != trees[0].capacity())
            raise_value_error("a tree has ", trees.back().capacity(), " leaves, but the first one ", trees[0].capacity(),
                              "; all must have as many");
    }
    return trees;
}

void construct(PyReplaySlots* self, const std::vector<nb::object>& tree_memory, std::int64_t rollout_length, std::int64_t rows,
               std::int64_t n_step, std::int64_t history, nb::handle reward, nb::handle terminated, nb::handle truncated,
               nb::handle valid, nb::handle reset, nb::handle generation, nb::handle next, nb::handle previous,
               std::int64_t window, std::int64_t stride, nb::handle acts, nb::handle policy) {
    std::vector<Buffer> memory;
    memory.reserve(10 + tree_memory.size());
    std::vector<SumTree> trees = attach_trees(tree_memory, memory);
    const SumTree& tree = trees[0];
    if (rollout_length < 1 || rows < 1)
        raise_value_error("rollout_length is ", rollout_length, " and rows ", rows, "; both must be at least 1");
    if (rollout_length > tree.capacity() || rows > tree.capacity() / rollout_length)
        raise_value_error("rollout_length is ", rollout_length, " and rows ", rows, "; the tree has ", tree.capacity(),
                          " leaves, fewer than one slot");
    if (n_step < 1 || n_step > rollout_length || history < 0 || history > rollout_length)
        raise_value_error("n_step is ", n_step, " and history ", history, "; they must be 1 to rollout_length=",
                          rollout_length, " and 0 to that");
    if (window != 0 && (window < n_step || window > rollout_length))
        raise_value_error("window is ", window, "; it must be n_step=", n_step, " to rollout_length=", rollout_length,
                          ", or 0 for single transitions");
    if (stride < 1 || rollout_length % stride != 0)
        raise_value_error("stride is ", stride, "; it must divide rollout_length=", rollout_length);
    if (!acts.is_none() && (history != 0 || window != 0))
        raise_value_error("history is ", history, " and window ", window,
                          " with acts; rows that do not act at every step have neither, use 0");
    const std::int64_t slots = tree.capacity() / (rollout_length * rows);
    const ReplayShape shape{slots, rollout_length, rows, n_step, history, window, stride};
    if (leaves_of(shape) != tree.capacity())
        raise_value_error("the tree has ", tree.capacity(),
                          " leaves; there must be a whole number of slots of rollout_length x rows = ",
                          rollout_length * rows);
    const std::vector<std::int64_t> at_step{slots, rollout_length, rows}, of_slot{slots};
    const auto* r = hold(memory, reward, "reward", false, at_step, sizeof(float)).data<float>();
    const auto* te = hold(memory, terminated, "terminated", false, at_step, 1).data<std::uint8_t>();
    const auto* tr = hold(memory, truncated, "truncated", false, at_step, 1).data<std::uint8_t>();
    const auto* va = hold(memory, valid, "valid", false, at_step, 1).data<std::uint8_t>();
    const std::vector<std::int64_t> at_cell{slots, rollout_length + 1, rows};
    const auto* re = hold(memory, reset, "reset", false, at_cell, 1).data<std::uint8_t>();
    auto* ge = hold(memory, generation, "generation", true, of_slot, sizeof(std::int64_t)).data<std::int64_t>();
    auto* ne = hold(memory, next, "next", true, of_slot, sizeof(std::int64_t)).data<std::int64_t>();
    auto* pr = hold(memory, previous, "previous", true, of_slot, sizeof(std::int64_t)).data<std::int64_t>();
    const std::uint8_t* ac = nullptr;
    if (!acts.is_none()) ac = hold(memory, acts, "acts", false, at_cell, 1).data<std::uint8_t>();
    const std::int16_t* po = nullptr;
    if (!policy.is_none())
        po = hold(memory, policy, "policy", false, at_cell, sizeof(std::int16_t)).data<std::int16_t>();
    else if (trees.size() > 1)
        raise_value_error("there are ", trees.size(), " trees, but policy is None; it says which tree a step belongs to");
    new (self) PyReplaySlots(std::move(memory), std::move(trees), shape, {r, te, tr, va, re, ge, ne, pr, ac, po});
}

void check_slot(const PyReplaySlots& self, std::int64_t slot, const char* name) {
    if (slot < 0 || slot >= self.slots.shape().num_slots)
        raise_index_error(name, " is ", slot, "; there are slots 0 to ", self.slots.shape().num_slots - 1);
}

void begin(PyReplaySlots& self, std::int64_t slot, std::int64_t previous) {
    check_slot(self, slot, "slot");
    if (previous != -1) check_slot(self, previous, "previous");
    if (previous == slot) raise_value_error("slot ", slot, " cannot follow itself; give another one, or previous=-1");
    self.slots.begin(slot, previous);
}

std::int64_t commit(PyReplaySlots& self, std::int64_t slot, std::int64_t step, nb::handle pending_array,
                    nb::handle counts_array) {
    const Buffer pending = int64_array(pending_array, "pending", true);
    check_slot(self, slot, "slot");
    const ReplayShape& shape = self.slots.shape();
    if (step < 0 || step >= shape.steps || pending.shape(0) != shape.rows)
        raise_value_error("step is ", step, " and pending has ", pending.shape(0), " entries; a slot has steps 0 to ",
                          shape.steps - 1, " of ", shape.rows, " rows");
    const auto trees = static_cast<std::int64_t>(self.slots.num_trees());
    std::optional<Buffer> counts;
    std::int64_t only = 0;
    if (!counts_array.is_none()) counts.emplace(int64_array(counts_array, "counts", true));
    if (counts ? counts->shape(0) != trees : trees > 1)
        raise_value_error("counts has ", counts ? counts->shape(0) : 0, " entries; there are ", trees, " trees");
    std::int64_t* each = counts ? counts->data<std::int64_t>() : &only;
    const nb::gil_scoped_release released;
    self.slots.commit(slot, step, pending.data<std::int64_t>(), each);
    return std::accumulate(each, each + trees, std::int64_t{0});
}

void evict(PyReplaySlots& self, std::int64_t slot) {
    check_slot(self, slot, "slot");
    const nb::gil_scoped_release released;
    self.slots.evict(slot);
}

// How to draw: bound once, so that a call for each batch passes little.
struct PyDrawRule {
    DrawRule rule;
    ReturnRule returns;
};

// A batch and the memory of its arrays.
struct PySlotBatch {
    PySlotBatch(std::vector<Buffer> held, const ReplayShape& shape, std::size_t tree)
        : memory(std::move(held)),
          batch(shape, memory[0].span<std::int64_t>(), memory[1].span<float>(), memory[2].span<float>(),
                memory[3].span<float>(), shape.window == 0 ? std::span<std::int64_t>() : memory[4].span<std::int64_t>(),
                tree) {}

    std::vector<Buffer> memory;
    ReplaySlots::Batch batch;
};

using Copies = std::vector<std::tuple<nb::handle, nb::handle, std::string, std::optional<std::string>>>;

// Which entries of shared arrays a batch takes, and how many there are of each.
struct Entries {
    const std::int64_t* index;  // [times, size]
    std::int64_t times;
    std::int64_t count;  // in the shared array
};

Entries entries_named(const std::string& name, const ReplayShape& shape, const ReplaySlots::Batch& batch) {
    const std::int64_t leaves = leaves_of(shape), cells = leaves + shape.num_slots * shape.rows, size = batch.size();
    const bool has_windows = shape.window != 0;
    if (name == "cells") return {batch.cells.data(), shape.window + 1, cells};
    if (name == "next_cells" && !has_windows) return {batch.cells.data() + size, 1, cells};
    if (name == "steps" && !has_windows) return {batch.leaves.data(), 1, leaves};
    if (name == "steps") return {batch.steps.data(), shape.window, leaves};
    const std::int64_t burn_in = shape.window - shape.n_step + 1 - batch.learned();
    if (name == "learned_steps" && has_windows) return {batch.steps.data() + burn_in * size, batch.learned(), leaves};
    if (name == "states" && has_windows) return {batch.states.data(), 1, leaves / shape.stride};
    raise_value_error("the entries are '", name, "'; allowed: 'cells', 'steps', and 'next_cells' for transitions or ",
                      "'learned_steps' and 'states' for windows");
}

// Has the batch copy these entries of `from` to `to`; with a padding, the stacks of frames that end there.
void add_copy(PySlotBatch& self, const ReplayShape& shape, nb::handle to_array, nb::handle from_array,
              const std::string& name, const std::optional<std::string>& padding) {
    ReplaySlots::Batch& batch = self.batch;
    const Entries entries = entries_named(name, shape, batch);
    const Buffer& to = self.memory.emplace_back(to_array, "to", true);
    const Buffer& from = self.memory.emplace_back(from_array, "from", false);
    const auto start = reinterpret_cast<std::uintptr_t>(from.data<void>());
    if (from.ndim() < 1 || from.shape(0) != entries.count || start % 8 != 0)
        raise_value_error("an array of ", name, " must have ", entries.count,
                          " rows, slot after slot, and start at a multiple of 8 bytes");
    const std::int64_t bytes = from.row_bytes(), unit = entries.times * batch.size() * bytes;
    const std::int64_t depth = unit == 0 ? 1 : to.nbytes() / unit, most = padding ? shape.history + 1 : 1;
    if (to.nbytes() != depth * unit || depth < 1 || depth > most)
        raise_value_error("the batch's array of ", name, " has ", to.nbytes(), " bytes; it must have ", unit,
                          ", or for stacks of frames up to history + 1 = ", shape.history + 1, " times as many");
    const auto size = static_cast<std::size_t>(bytes);
    if (!padding)
        batch.columns.push_back(
            {to.data<std::byte>(), from.data<std::byte>(), entries.index, entries.times, size, size, false});
    else
        batch.stacks.push_back({to.data<std::byte>(), from.data<std::byte>(), entries.index, entries.times, depth, size,
                                *padding == "repeat"});
}

void construct_batch(PySlotBatch* self, const PyReplaySlots& slots, nb::handle leaf, nb::handle weight, nb::handle reward,
                     nb::handle discount, nb::handle then, const Copies& copies, std::int64_t tree) {
    const ReplayShape& shape = slots.slots.shape();
    if (const auto trees = static_cast<std::int64_t>(slots.trees.size()); tree < 0 || tree >= trees)
        raise_value_error("tree is ", tree, "; there are trees 0 to ", trees - 1);
    std::vector<Buffer> memory;
    memory.reserve(5 + 2 * copies.size());
    const std::int64_t n = memory.emplace_back(int64_array(leaf, "leaf", true)).shape(0);
    if (n < 1) raise_value_error("leaf is empty; a batch has at least 1 sample");
    hold(memory, weight, "weight", true, {n}, sizeof(float));
    std::int64_t learned = 1;
    if (shape.window != 0) {
        const std::int64_t most = shape.window - shape.n_step + 1;
        const Buffer given(reward, "reward", true);
        learned = given.ndim() == 2 ? given.shape(0) : 0;
        if (learned < 1 || learned > most)
            raise_value_error("reward must be [learned steps, ", n, "] with 1 to window - n_step + 1 = ", most,
                              " of them");
    }
    const std::vector<std::int64_t> each = shape.window == 0 ? std::vector{n} : std::vector{learned, n};
    hold(memory, reward, "reward", true, each, sizeof(float));
    hold(memory, discount, "discount", true, each, sizeof(float));
    if (shape.window != 0) hold(memory, then, "then", true, each, sizeof(std::int64_t));
    new (self) PySlotBatch(std::move(memory), shape, static_cast<std::size_t>(tree));
    for (const auto& [to, from, name, padding] : copies) add_copy(*self, shape, to, from, name, padding);
}

bool sample(PyReplaySlots& self, nb::handle random_array, PySlotBatch& batch, const PyDrawRule& how, double beta,
            std::int64_t num_items) {
    const Buffer random(random_array, "random", true);
    if (random.nbytes() != sizeof(Random) || random.itemsize() != 8)
        raise_type_error("random must be a uint64 array of 2: seed and counter");
    DrawRule rule = how.rule;
    rule.beta = beta;
    if (rule.weights == Weights::everything && !self.trees[batch.batch.tree].has_minimum())
        raise_value_error("weights is 'global'; that needs a tree created with minimum=True");
    const nb::gil_scoped_release released;
    return self.slots.sample(*random.data<Random>(), rule, how.returns, num_items, batch.batch);
}

std::int64_t update(PyReplaySlots& self, const PySlotBatch& batch, nb::handle td_errors_array, double alpha,
                    double epsilon, double decay) {
    const Buffer td_errors(td_errors_array, "td_errors", false);
    if (td_errors.format() != 'f' || td_errors.ndim() != 1 || td_errors.shape(0) != batch.batch.size())
        raise_value_error("td_errors must be a float32 array of ", batch.batch.size());
    const PriorityRule rule{.alpha = alpha, .epsilon = epsilon};
    const std::vector<float> priorities = checked_priorities(td_errors.span<float>(), rule);
    const nb::gil_scoped_release released;
    return self.slots.update(batch.batch, priorities, decay, rule.least());
}

}  // namespace

void bind_replay_slots(nb::module_& m) {
    nb::class_<PyReplaySlots>(m, "ReplaySlots")
        .def("__init__", &construct, "trees"_a, nb::kw_only(), "rollout_length"_a, "rows"_a, "n_step"_a, "history"_a,
             "reward"_a, "terminated"_a, "truncated"_a, "valid"_a, "reset"_a, "generation"_a, "next"_a, "previous"_a,
             "window"_a = 0, "stride"_a = 1, "acts"_a = nb::none(), "policy"_a = nb::none())
        .def("begin", &begin, "slot"_a, "previous"_a)
        .def("commit", &commit, "slot"_a, "step"_a, "pending"_a, "counts"_a = nb::none())
        .def("evict", &evict, "slot"_a)
        .def("sample", &sample, "random"_a, "batch"_a, "rule"_a, "beta"_a, "num_items"_a)
        .def("update", &update, "batch"_a, "td_errors"_a, nb::kw_only(), "alpha"_a, "epsilon"_a, "decay"_a);
    nb::class_<PySlotBatch>(m, "SlotBatch")
        .def("__init__", &construct_batch, "slots"_a, nb::kw_only(), "leaf"_a, "weight"_a, "reward"_a, "discount"_a,
             "then"_a = nb::none(), "copies"_a, "tree"_a = 0);
    nb::class_<PyDrawRule>(m, "DrawRule")
        .def(
            "__init__",
            [](PyDrawRule* self, double gamma, double reward_scale, double reward_clip, const std::string& weights,
               bool stratified) {
                new (self) PyDrawRule{{.weights = weights_named(weights), .stratified = stratified},
                                      {gamma, reward_scale, reward_clip}};
            },
            nb::kw_only(), "gamma"_a, "reward_scale"_a, "reward_clip"_a, "weights"_a, "stratified"_a);
}

}  // namespace rollmill
