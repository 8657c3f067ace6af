// Arguments from Python: memory by the buffer protocol, timeouts; and waits that let Python handle its signals.
#pragma once

#include <nanobind/nanobind.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>

#include "core/errors.h"
#include "core/lane_ring.h"

namespace rollmill {

namespace nb = nanobind;
using namespace nb::literals;  // "name"_a

template <class... Parts>
[[noreturn]] void raise_type_error(const Parts&... parts) {
    throw nb::type_error(message(parts...).c_str());
}
template <class... Parts>
[[noreturn]] void raise_value_error(const Parts&... parts) {
    throw nb::value_error(message(parts...).c_str());
}
template <class... Parts>
[[noreturn]] void raise_index_error(const Parts&... parts) {
    throw nb::index_error(message(parts...).c_str());
}

// C-contiguous memory of a Python object, kept alive and in place while this lives.
class Buffer {
   public:
    Buffer(nb::handle object, const char* name, bool writable) {
        const int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
        if (PyObject_GetBuffer(object.ptr(), &view_, flags) != 0) {
            PyErr_Clear();
            raise_type_error(name, " must be a C-contiguous ", (writable ? "writable " : ""),
                             "array (or another buffer), not this ", nb::inst_name(object).c_str());
        }
    }
    Buffer(Buffer&& other) noexcept : view_(std::exchange(other.view_, Py_buffer{})) {}
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    Buffer& operator=(Buffer&&) = delete;
    ~Buffer() { PyBuffer_Release(&view_); }

    template <class T>
    T* data() const noexcept {
        return static_cast<T*>(view_.buf);
    }
    template <class T>
    std::span<T> span() const noexcept {
        return {data<T>(), static_cast<std::size_t>(view_.len) / sizeof(T)};
    }
    std::int64_t nbytes() const noexcept { return view_.len; }
    int ndim() const noexcept { return view_.ndim; }
    std::int64_t shape(int axis) const noexcept { return view_.shape[axis]; }
    std::int64_t itemsize() const noexcept { return view_.itemsize; }

    // The struct-module code of the elements, without a byte order mark that says "native".
    char format() const noexcept {
        const char* f = view_.format == nullptr ? "B" : view_.format;
        if (*f == '@' || *f == '=' || *f == '<') ++f;
        return f[1] == '\0' ? f[0] : '\0';
    }
    bool is_int64() const noexcept { return view_.itemsize == 8 && (format() == 'l' || format() == 'q'); }

    // Bytes of one entry of the first axis.
    std::int64_t row_bytes() const noexcept {
        std::int64_t bytes = view_.itemsize;
        for (int axis = 1; axis < view_.ndim; ++axis) bytes *= view_.shape[axis];
        return bytes;
    }

   private:
    Py_buffer view_{};
};

// A one-dimensional int64 array.
inline Buffer int64_array(nb::handle object, const char* name, bool writable) {
    Buffer buffer(object, name, writable);
    if (!buffer.is_int64() || buffer.ndim() != 1)
        raise_type_error(name, " must be a one-dimensional int64 array");
    return buffer;
}

// Seconds to wait; None is for ever.
inline double timeout_seconds(nb::handle timeout) {
    if (timeout.is_none()) return std::numeric_limits<double>::infinity();
    const double seconds = PyFloat_AsDouble(timeout.ptr());
    if (seconds == -1.0 && PyErr_Occurred() != nullptr) throw nb::python_error();
    if (std::isnan(seconds)) raise_value_error("the timeout is NaN; give seconds, or None to wait for ever");
    return seconds;
}

// Calls `step(seconds left)` without the GIL until it says something other than `interrupted`; Python's signal handlers
// run in between, and what they raise is thrown.
template <class Step>
Wait wait_without_gil(double seconds, Step&& step) {
    const double deadline = monotonic_seconds() + seconds;
    for (;;) {
        Wait result;
        {
            nb::gil_scoped_release released;
            result = step(deadline - monotonic_seconds());
        }
        if (result != Wait::interrupted) return result;
        if (PyErr_CheckSignals() != 0) throw nb::python_error();
    }
}

// Parts of the module.
void bind_lane_ring(nb::module_& m);
void bind_message_lanes(nb::module_& m);
void bind_arrays(nb::module_& m);
void bind_atomics(nb::module_& m);
void bind_sum_tree(nb::module_& m);
void bind_replay_slots(nb::module_& m);
void bind_replay_ring(nb::module_& m);
void bind_replay_load(nb::module_& m);

}  // namespace rollmill
