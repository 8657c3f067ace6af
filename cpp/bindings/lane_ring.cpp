// LaneRing for Python. `put` is a bare C method: nanobind's dispatch would cost more than the work.
#include <algorithm>

#include "bindings/buffers.h"

namespace rollmill {
namespace {

struct PyLaneRing {
    Buffer memory;
    LaneRing ring;
};

PyObject* put(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
    if (count != 2) {
        PyErr_Format(PyExc_TypeError, "put takes a lane and a value, not %zd arguments", count);
        return nullptr;
    }
    const long long lane = PyLong_AsLongLong(arguments[0]);
    const long long value = PyLong_AsLongLong(arguments[1]);
    if ((lane == -1 || value == -1) && PyErr_Occurred() != nullptr) return nullptr;
    if (!nb::inst_ready(self)) {
        PyErr_SetString(PyExc_TypeError, "this LaneRing was not initialised");
        return nullptr;
    }
    LaneRing& ring = nb::inst_ptr<PyLaneRing>(self)->ring;
    if (lane < 0 || lane >= ring.num_lanes()) {
        PyErr_Format(PyExc_IndexError, "lane is %lld; this ring has lanes 0 to %lld", lane,
                     static_cast<long long>(ring.num_lanes() - 1));
        return nullptr;
    }
    return PyBool_FromLong(ring.put(lane, value));
}

PyMethodDef ring_methods[] = {
    {"put", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(put)), METH_FASTCALL,
     "put($self, lane, value, /)\n--\n\nPut one value; False when the lane is full."},
    {nullptr, nullptr, 0, nullptr},
};

PyType_Slot ring_slots[] = {{Py_tp_methods, ring_methods}, {0, nullptr}};

std::int64_t get_many(PyLaneRing& self, nb::handle out, double timeout_s, std::int64_t min_items) {
    if (!(timeout_s >= 0))
        raise_value_error("timeout_s is ", timeout_s, "; it must not be negative or NaN");
    const Buffer buffer = int64_array(out, "out", true);
    const std::int64_t most = std::min(buffer.shape(0), self.ring.capacity());
    if (min_items < 1 || min_items > most)
        raise_value_error("min_items is ", min_items, "; it must be 1 to ", most,
                          ", the smaller of out's length and a lane's capacity");
    if (min_items == 1) {
        const std::int64_t taken = self.ring.take(buffer.span<std::int64_t>());
        if (taken > 0) return taken;
    }
    wait_without_gil(timeout_s, [&](double seconds) { return self.ring.wait_for_words(min_items, seconds); });
    return self.ring.take(buffer.span<std::int64_t>());
}

}  // namespace

void bind_lane_ring(nb::module_& m) {
    nb::class_<PyLaneRing>(m, "LaneRing", nb::type_slots(ring_slots))
        .def(
            "__init__",
            [](PyLaneRing* self, nb::handle memory, std::int64_t num_lanes, std::int64_t capacity, bool create) {
                Buffer buffer(memory, "memory", true);
                const LaneRing ring(buffer.data<void>(), static_cast<std::size_t>(buffer.nbytes()), num_lanes, capacity,
                                    create);
                new (self) PyLaneRing{std::move(buffer), ring};
            },
            "memory"_a, "num_lanes"_a, "capacity"_a, nb::kw_only(), "create"_a)
        .def_static("nbytes", &LaneRing::nbytes, "num_lanes"_a, "capacity"_a)
        .def_prop_ro("num_lanes", [](const PyLaneRing& self) { return self.ring.num_lanes(); })
        .def_prop_ro("capacity", [](const PyLaneRing& self) { return self.ring.capacity(); })
        .def("get_many", &get_many, "out"_a, "timeout_s"_a, "min_items"_a = 1)
        .def("wake", [](PyLaneRing& self) { self.ring.wake(); })
        .def("__len__", [](const PyLaneRing& self) { return self.ring.size(); });
}

}  // namespace rollmill
