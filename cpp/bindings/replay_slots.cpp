// ReplaySlots for Python: arguments are checked, then the GIL is released, then the tree's lock is taken.
#include "core/replay_slots.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "bindings/buffers.h"
#include "bindings/priorities.h"

namespace rollmill {
namespace {

struct PyReplaySlots {
    PyReplaySlots(std::vector<Buffer> held, const SumTree& view, const ReplaySlots& core)
        : memory(std::move(held)), tree(view), slots(core) {}
    PyReplaySlots(const PyReplaySlots&) = delete;  // what it holds cannot be copied
    PyReplaySlots& operator=(const PyReplaySlots&) = delete;

    std::vector<Buffer> memory;
    SumTree tree;
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
        raise_value_error(std::string(name) + " must be of shape [" + expected + "] and of " + std::to_string(itemsize) +
                          " byte(s) an item");
    }
    memory.push_back(std::move(buffer));
    return memory.back();
}

void construct(PyReplaySlots* self, nb::handle tree_memory, std::int64_t rollout_length, std::int64_t rows,
               std::int64_t n_step, std::int64_t history, nb::handle reward, nb::handle terminated, nb::handle truncated,
               nb::handle valid, nb::handle reset, nb::handle generation, nb::handle next, nb::handle previous,
               std::int64_t window, std::int64_t stride) {
    std::vector<Buffer> memory;
    memory.reserve(9);
    Buffer tree_buffer(tree_memory, "tree", true);
    SumTree tree = SumTree::attach(tree_buffer.data<void>(), static_cast<std::size_t>(tree_buffer.nbytes()));
    memory.push_back(std::move(tree_buffer));
    if (rollout_length < 1 || rows < 1)
        raise_value_error("rollout_length is " + std::to_string(rollout_length) + " and rows " + std::to_string(rows) +
                          "; both must be at least 1");
    if (rollout_length > tree.capacity() || rows > tree.capacity() / rollout_length)
        raise_value_error("rollout_length is " + std::to_string(rollout_length) + " and rows " + std::to_string(rows) +
                          "; the tree has " + std::to_string(tree.capacity()) + " leaves, fewer than one slot");
    if (n_step < 1 || n_step > rollout_length || history < 0 || history > rollout_length)
        raise_value_error("n_step is " + std::to_string(n_step) + " and history " + std::to_string(history) +
                          "; they must be 1 to rollout_length=" + std::to_string(rollout_length) + " and 0 to that");
    if (window != 0 && (window < n_step || window > rollout_length))
        raise_value_error("window is " + std::to_string(window) + "; it must be n_step=" + std::to_string(n_step) +
                          " to rollout_length=" + std::to_string(rollout_length) + ", or 0 for single transitions");
    if (stride < 1 || rollout_length % stride != 0)
        raise_value_error("stride is " + std::to_string(stride) + "; it must divide rollout_length=" +
                          std::to_string(rollout_length));
    const std::int64_t slots = tree.capacity() / (rollout_length * rows);
    const ReplayShape shape{slots, rollout_length, rows, n_step, history, window, stride};
    if (leaves_of(shape) != tree.capacity())
        raise_value_error("the tree has " + std::to_string(tree.capacity()) +
                          " leaves; there must be a whole number of slots of rollout_length x rows = " +
                          std::to_string(rollout_length * rows));
    const std::vector<std::int64_t> at_step{slots, rollout_length, rows}, of_slot{slots};
    const auto* r = hold(memory, reward, "reward", false, at_step, sizeof(float)).data<float>();
    const auto* te = hold(memory, terminated, "terminated", false, at_step, 1).data<std::uint8_t>();
    const auto* tr = hold(memory, truncated, "truncated", false, at_step, 1).data<std::uint8_t>();
    const auto* va = hold(memory, valid, "valid", false, at_step, 1).data<std::uint8_t>();
    const auto* re = hold(memory, reset, "reset", false, {slots, rollout_length + 1, rows}, 1).data<std::uint8_t>();
    auto* ge = hold(memory, generation, "generation", true, of_slot, sizeof(std::int64_t)).data<std::int64_t>();
    auto* ne = hold(memory, next, "next", true, of_slot, sizeof(std::int64_t)).data<std::int64_t>();
    auto* pr = hold(memory, previous, "previous", true, of_slot, sizeof(std::int64_t)).data<std::int64_t>();
    new (self) PyReplaySlots(std::move(memory), tree, ReplaySlots(tree, shape, {r, te, tr, va, re, ge, ne, pr}));
}

void check_slot(const PyReplaySlots& self, std::int64_t slot, const char* name) {
    if (slot < 0 || slot >= self.slots.shape().num_slots)
        raise_index_error(std::string(name) + " is " + std::to_string(slot) + "; there are slots 0 to " +
                          std::to_string(self.slots.shape().num_slots - 1));
}

void begin(PyReplaySlots& self, std::int64_t slot, std::int64_t previous) {
    check_slot(self, slot, "slot");
    if (previous != -1) check_slot(self, previous, "previous");
    self.slots.begin(slot, previous);
}

std::int64_t commit(PyReplaySlots& self, std::int64_t slot, std::int64_t step, nb::handle pending_array) {
    const Buffer pending = int64_array(pending_array, "pending", true);
    check_slot(self, slot, "slot");
    const ReplayShape& shape = self.slots.shape();
    if (step < 0 || step >= shape.steps || pending.shape(0) != shape.rows)
        raise_value_error("step is " + std::to_string(step) + " and pending has " + std::to_string(pending.shape(0)) +
                          " entries; a slot has steps 0 to " + std::to_string(shape.steps - 1) + " of " +
                          std::to_string(shape.rows) + " rows");
    const nb::gil_scoped_release released;
    return self.slots.commit(slot, step, pending.data<std::int64_t>());
}

void evict(PyReplaySlots& self, std::int64_t slot) {
    check_slot(self, slot, "slot");
    const nb::gil_scoped_release released;
    self.slots.evict(slot);
}

Buffer column(nb::handle object, const char* name, char format, std::int64_t count) {
    Buffer buffer(object, name, true);
    const bool is_of_type = format == 'f' ? buffer.format() == 'f' : buffer.is_int64();
    if (!is_of_type || buffer.ndim() != 1 || buffer.shape(0) != count)
        raise_value_error(std::string(name) + " must be a one-dimensional " + (format == 'f' ? "float32" : "int64") +
                          " array of " + std::to_string(count));
    return buffer;
}

// [time, count], C-contiguous.
Buffer table(nb::handle object, const char* name, char format, std::int64_t time, std::int64_t count) {
    Buffer buffer(object, name, true);
    const bool is_of_type = format == 'f' ? buffer.format() == 'f' : buffer.is_int64();
    if (!is_of_type || buffer.ndim() != 2 || buffer.shape(0) != time || buffer.shape(1) != count)
        raise_value_error(std::string(name) + " must be " + (format == 'f' ? "a float32" : "an int64") + " array [" +
                          std::to_string(time) + ", " + std::to_string(count) + "]");
    return buffer;
}

Buffer witness_array(nb::handle object, bool writable, std::int64_t count) {
    Buffer buffer(object, "witness", writable);
    if (!buffer.is_int64() || buffer.ndim() != 2 || buffer.shape(0) != count || buffer.shape(1) != 3)
        raise_value_error("witness must be an int64 array [" + std::to_string(count) + ", 3]");
    return buffer;
}

Buffer random_state(nb::handle object) {
    Buffer random(object, "random", true);
    if (random.nbytes() != sizeof(Random) || random.itemsize() != 8)
        raise_type_error("random must be a uint64 array of 2: seed and counter");
    return random;
}

Weights weights_of(const PyReplaySlots& self, const std::string& name) {
    const Weights kind = weights_named(name);
    if (kind == Weights::everything && !self.tree.has_minimum())
        raise_value_error("weights is 'global'; that needs a tree created with minimum=True");
    return kind;
}

bool draw(PyReplaySlots& self, nb::handle random_array, nb::handle leaf_array, nb::handle generation_array,
          nb::handle weight_array, nb::handle reward_array, nb::handle discount_array, nb::handle now_array,
          nb::handle then_array, nb::handle witness, double gamma, double reward_scale, double reward_clip, double beta,
          const std::string& weights, std::int64_t num_items, bool stratified) {
    const Buffer random = random_state(random_array);
    const Buffer leaf = int64_array(leaf_array, "leaf", true);
    const std::int64_t n = leaf.shape(0);
    const Buffer generation = column(generation_array, "generation", 'q', n), weight = column(weight_array, "weight", 'f', n);
    const Buffer reward = column(reward_array, "reward", 'f', n), discount = column(discount_array, "discount", 'f', n);
    const Buffer now = column(now_array, "now", 'q', n), then = column(then_array, "then", 'q', n);
    const Buffer seen = witness_array(witness, true, n);
    const Weights kind = weights_of(self, weights);
    if (self.slots.shape().window != 0) raise_value_error("the replay is one of windows; use draw_windows");
    if (n == 0) return true;
    const nb::gil_scoped_release released;
    ReplaySlots::Look look{};
    if (!self.slots.draw(*random.data<Random>(), n, stratified, {gamma, reward_scale, reward_clip},
                         {leaf.data<std::int64_t>(), generation.data<std::int64_t>(), weight.data<float>(),
                          now.data<std::int64_t>(), then.data<std::int64_t>(), reward.data<float>(),
                          discount.data<float>(), seen.data<std::int64_t>()},
                         &look))
        return false;
    weigh(weight.span<float>(), kind, beta, {look.total, look.minimum, num_items}, weight.span<float>());
    return true;
}

bool draw_windows(PyReplaySlots& self, nb::handle random_array, nb::handle leaf_array, nb::handle generation_array,
                  nb::handle weight_array, nb::handle reward_array, nb::handle discount_array, nb::handle cells_array,
                  nb::handle steps_array, nb::handle then_array, nb::handle witness, double gamma, double reward_scale,
                  double reward_clip, double beta, const std::string& weights, std::int64_t num_items,
                  bool stratified) {
    const ReplayShape& shape = self.slots.shape();
    if (shape.window == 0) raise_value_error("the replay is one of single transitions; use draw");
    const Buffer random = random_state(random_array);
    const Buffer leaf = int64_array(leaf_array, "leaf", true);
    const std::int64_t n = leaf.shape(0);
    const Buffer generation = column(generation_array, "generation", 'q', n), weight = column(weight_array, "weight", 'f', n);
    const Buffer given(reward_array, "reward", true);
    const std::int64_t most = shape.window - shape.n_step + 1;
    const std::int64_t learned = given.ndim() == 2 ? given.shape(0) : 0;
    if (learned < 1 || learned > most)
        raise_value_error("reward must be [learned steps, " + std::to_string(n) + "] with 1 to window - n_step + 1 = " +
                          std::to_string(most) + " of them");
    const Buffer reward = table(reward_array, "reward", 'f', learned, n);
    const Buffer discount = table(discount_array, "discount", 'f', learned, n);
    const Buffer then = table(then_array, "then", 'q', learned, n);
    const Buffer cells = table(cells_array, "cells", 'q', shape.window + 1, n);
    const Buffer steps = table(steps_array, "steps", 'q', shape.window, n);
    const Buffer seen = witness_array(witness, true, n);
    const Weights kind = weights_of(self, weights);
    if (n == 0) return true;
    const nb::gil_scoped_release released;
    ReplaySlots::Look look{};
    if (!self.slots.draw_windows(*random.data<Random>(), n, stratified, {gamma, reward_scale, reward_clip},
                                 {learned, leaf.data<std::int64_t>(), generation.data<std::int64_t>(),
                                  weight.data<float>(), cells.data<std::int64_t>(), steps.data<std::int64_t>(),
                                  then.data<std::int64_t>(), reward.data<float>(), discount.data<float>(),
                                  seen.data<std::int64_t>()},
                                 &look))
        return false;
    weigh(weight.span<float>(), kind, beta, {look.total, look.minimum, num_items}, weight.span<float>());
    return true;
}

std::int64_t find_torn(const PyReplaySlots& self, nb::handle witness, nb::handle torn_array) {
    const Buffer torn(torn_array, "torn", true);
    const Buffer seen = witness_array(witness, false, torn.nbytes());
    return self.slots.find_torn(seen.data<std::int64_t>(), torn.nbytes(), torn.data<std::uint8_t>());
}

void gather_stacks(const PyReplaySlots& self, nb::handle dst_array, nb::handle frames_array, nb::handle cells_array,
                   bool repeat) {
    const Buffer dst(dst_array, "dst", true), frames(frames_array, "frames", false);
    const Buffer cells = int64_array(cells_array, "cells", false);
    const ReplayShape& shape = self.slots.shape();
    const std::int64_t num_cells = shape.num_slots * (shape.steps + 1) * shape.rows;
    if (frames.ndim() < 1 || frames.shape(0) != num_cells)
        raise_value_error("frames must have " + std::to_string(num_cells) + " rows, slot after slot");
    if (dst.ndim() < 2 || dst.shape(0) != cells.shape(0) || dst.shape(1) > shape.history + 1 ||
        dst.row_bytes() != dst.shape(1) * frames.row_bytes())
        raise_value_error("dst must be [" + std::to_string(cells.shape(0)) + ", depth, ...] with depth at most history + 1 = " +
                          std::to_string(shape.history + 1) + " and frames like those of frames");
    const auto* cell = cells.data<std::int64_t>();
    for (std::int64_t i = 0; i < cells.shape(0); ++i)
        if (cell[i] < 0 || cell[i] >= num_cells)
            raise_index_error("cells[" + std::to_string(i) + "] is " + std::to_string(cell[i]) + "; there are 0 to " +
                              std::to_string(num_cells - 1));
    const nb::gil_scoped_release released;
    self.slots.gather_stacks(dst.data<std::byte>(), frames.data<std::byte>(), cell, cells.shape(0), dst.shape(1),
                             static_cast<std::size_t>(frames.row_bytes()), repeat);
}

}  // namespace

void bind_replay_slots(nb::module_& m) {
    nb::class_<PyReplaySlots>(m, "ReplaySlots")
        .def("__init__", &construct, nb::arg("tree"), nb::kw_only(), nb::arg("rollout_length"), nb::arg("rows"),
             nb::arg("n_step"), nb::arg("history"), nb::arg("reward"), nb::arg("terminated"), nb::arg("truncated"),
             nb::arg("valid"), nb::arg("reset"), nb::arg("generation"), nb::arg("next"), nb::arg("previous"),
             nb::arg("window") = 0, nb::arg("stride") = 1)
        .def("begin", &begin, nb::arg("slot"), nb::arg("previous"))
        .def("commit", &commit, nb::arg("slot"), nb::arg("step"), nb::arg("pending"))
        .def("evict", &evict, nb::arg("slot"))
        .def("draw", &draw, nb::arg("random"), nb::arg("leaf"), nb::arg("generation"), nb::arg("weight"),
             nb::arg("reward"), nb::arg("discount"), nb::arg("now"), nb::arg("then"), nb::arg("witness"), nb::kw_only(),
             nb::arg("gamma"), nb::arg("reward_scale") = 1.0,
             nb::arg("reward_clip") = std::numeric_limits<double>::infinity(), nb::arg("beta") = 0.0,
             nb::arg("weights") = "ones", nb::arg("num_items") = 1, nb::arg("stratified") = false)
        .def("draw_windows", &draw_windows, nb::arg("random"), nb::arg("leaf"), nb::arg("generation"),
             nb::arg("weight"), nb::arg("reward"), nb::arg("discount"), nb::arg("cells"), nb::arg("steps"),
             nb::arg("then"), nb::arg("witness"), nb::kw_only(), nb::arg("gamma"), nb::arg("reward_scale") = 1.0,
             nb::arg("reward_clip") = std::numeric_limits<double>::infinity(), nb::arg("beta") = 0.0,
             nb::arg("weights") = "ones", nb::arg("num_items") = 1, nb::arg("stratified") = false)
        .def("find_torn", &find_torn, nb::arg("witness"), nb::arg("torn"))
        .def("gather_stacks", &gather_stacks, nb::arg("dst"), nb::arg("frames"), nb::arg("cells"), nb::kw_only(),
             nb::arg("repeat"));
}

}  // namespace rollmill
