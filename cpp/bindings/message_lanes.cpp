// MessageLanes for Python: what rollmill.ring.Queue is made of. `put` is a bare C method: nanobind's dispatch would cost
// more than the work.
#include "core/message_lanes.h"

#include <pthread.h>

#include <string_view>

#include "bindings/buffers.h"

namespace rollmill {
namespace {

// Counts the forks that led to this process: a child must not use its parent's lane.
std::uint64_t fork_generation = 0;

PyObject* queue_full = nullptr;
PyObject* queue_empty = nullptr;

[[noreturn]] void raise(PyObject* type) {
    PyErr_SetNone(type);
    throw nb::python_error();
}

struct PyMessageLanes {
    Buffer memory;
    MessageLanes lanes;
    std::int64_t lane = -1;  // claimed at the first put
    std::uint64_t claimed_in = 0;
    bool closed = false;

    ~PyMessageLanes() { give_lane_back(); }

    void give_lane_back() noexcept {
        if (lane >= 0 && claimed_in == fork_generation) lanes.unclaim(lane);
        lane = -1;
    }
    void check_open() const {
        if (closed) raise_value_error("this Queue is closed in this process");
    }
    void ready_to_put() {
        check_open();
        if (lane >= 0 && claimed_in == fork_generation) return;
        lane = lanes.claim();
        claimed_in = fork_generation;
        if (lane < 0)
            throw std::runtime_error(
                "every lane of this Queue belongs to a living producer; make it with a larger max_producers");
    }
};

// One message on its way in.
struct Outgoing {
    bool is_integer = true;
    std::int64_t integer = 0;
    std::string_view bytes;

    explicit Outgoing(std::int64_t value) : integer(value) {}
    explicit Outgoing(PyObject* object) {
        if (PyBytes_Check(object)) {
            is_integer = false;
            bytes = {PyBytes_AsString(object), static_cast<std::size_t>(PyBytes_Size(object))};
            return;
        }
        if (!PyIndex_Check(object))
            raise_type_error("a Queue carries int and bytes, not ", nb::inst_name(object).c_str(),
                             "; pickle it yourself, or use multiprocessing.Queue");
        integer = PyLong_AsLongLong(object);  // takes __index__, so NumPy's integers pass
        if (integer == -1 && PyErr_Occurred() != nullptr) {
            if (PyErr_ExceptionMatches(PyExc_OverflowError) != 0)
                PyErr_SetString(PyExc_OverflowError, "a Queue carries integers of 64 bits; send a larger one as bytes");
            throw nb::python_error();
        }
    }
    std::int64_t words() const { return is_integer ? MessageLanes::words_of(integer) : MessageLanes::words_of(bytes); }
    bool put(PyMessageLanes& self) const {
        return is_integer ? self.lanes.put(self.lane, integer) : self.lanes.put(self.lane, bytes);
    }
};

// Puts one message, waiting at most `seconds` for space.
bool put_within(PyMessageLanes& self, const Outgoing& message, double seconds) {
    self.ready_to_put();
    if (message.put(self)) return true;
    const std::int64_t words = message.words();
    if (words > self.lanes.capacity())
        raise_value_error("a message of ", words * 8, " bytes does not fit a lane of ", self.lanes.capacity() * 8,
                          "; make the Queue with a capacity of at least ", words);
    const double deadline = monotonic_seconds() + seconds;
    for (;;) {
        const double left = deadline - monotonic_seconds();
        if (left <= 0) return false;
        const std::int64_t lane = self.lane;
        wait_without_gil(left, [&](double s) { return self.lanes.wait_for_space(lane, words, s); });
        self.check_open();  // another thread may have closed it meanwhile
        if (message.put(self)) return true;
    }
}

PyObject* put_general(PyObject* self, PyObject* const* arguments, Py_ssize_t count, PyObject* names) {
    try {
        static const char* const allowed[] = {"obj", "block", "timeout"};
        PyObject* given[3] = {};
        if (count > 3) raise_type_error("put takes obj, block and timeout");
        for (Py_ssize_t i = 0; i < count; ++i) given[i] = arguments[i];
        for (Py_ssize_t i = 0; names != nullptr && i < PyTuple_Size(names); ++i) {
            std::size_t slot = 0;
            while (slot < 3 && PyUnicode_CompareWithASCIIString(PyTuple_GetItem(names, i), allowed[slot]) != 0) ++slot;
            if (slot == 3 || given[slot] != nullptr) raise_type_error("put takes obj, block and timeout, each once");
            given[slot] = arguments[count + i];
        }
        if (given[0] == nullptr) raise_type_error("put takes obj, block and timeout; obj is missing");
        const int block = given[1] == nullptr ? 1 : PyObject_IsTrue(given[1]);
        if (block < 0) throw nb::python_error();
        const double seconds = block ? timeout_seconds(given[2] == nullptr ? Py_None : given[2]) : 0.0;
        if (!put_within(*nb::inst_ptr<PyMessageLanes>(self), Outgoing(given[0]), seconds)) raise(queue_full);
        Py_RETURN_NONE;
    } catch (nb::python_error& error) {
        error.restore();
    } catch (const nb::builtin_exception& error) {
        PyErr_SetString(error.type() == nb::exception_type::value_error ? PyExc_ValueError : PyExc_TypeError, error.what());
    } catch (const std::exception& error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
    }
    return nullptr;
}

PyObject* put(PyObject* self, PyObject* const* arguments, Py_ssize_t count, PyObject* names) {
    if (!nb::inst_ready(self)) {
        PyErr_SetString(PyExc_TypeError, "this Queue was not initialised");
        return nullptr;
    }
    // An int into a lane with space, the case that must cost nothing; everything else goes the general way.
    if (count == 1 && names == nullptr && PyLong_CheckExact(arguments[0])) {
        PyMessageLanes& queue = *nb::inst_ptr<PyMessageLanes>(self);
        int overflow = 0;
        const long long value = PyLong_AsLongLongAndOverflow(arguments[0], &overflow);
        if (overflow == 0 && queue.lane >= 0 && queue.claimed_in == fork_generation && !queue.closed &&
            queue.lanes.put(queue.lane, value))
            Py_RETURN_NONE;
    }
    return put_general(self, arguments, count, names);
}

PyMethodDef queue_methods[] = {
    {"put", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(put)), METH_FASTCALL | METH_KEYWORDS,
     "put($self, /, obj, block=True, timeout=None)\n--\n\nPut an int or bytes."},
    {nullptr, nullptr, 0, nullptr},
};

PyType_Slot queue_slots[] = {{Py_tp_methods, queue_methods}, {0, nullptr}};

std::int64_t put_many(PyMessageLanes& self, nb::handle values, bool block, nb::handle timeout) {
    const double deadline = monotonic_seconds() + (block ? timeout_seconds(timeout) : 0.0);
    std::int64_t done = 0;
    if (PyObject_CheckBuffer(values.ptr()) != 0 && !PyBytes_Check(values.ptr())) {
        const Buffer array = int64_array(values, "values", false);
        self.ready_to_put();
        for (; done < array.shape(0); ++done) {
            const Outgoing message(array.data<std::int64_t>()[done]);
            if (!message.put(self) && !put_within(self, message, deadline - monotonic_seconds())) break;
        }
        return done;
    }
    for (nb::handle value : nb::iter(values)) {
        if (!put_within(self, Outgoing(value.ptr()), deadline - monotonic_seconds())) break;
        ++done;
    }
    return done;
}

// Fills the sink with at least one message within `seconds`; otherwise leaves it empty.
void take_within(PyMessageLanes& self, MessageLanes::Sink& sink, double seconds) {
    self.check_open();
    self.lanes.take(sink);
    if (sink.count > 0 || sink.met_bytes || seconds <= 0) return;
    wait_without_gil(seconds, [&](double left) { return self.lanes.take_waiting(sink, left); });
}

nb::object to_python(const Message& message) {
    if (message.is_integer) return nb::steal(PyLong_FromLongLong(message.integer));
    return nb::bytes(message.bytes.data(), message.bytes.size());
}

nb::object get(PyMessageLanes& self, bool block, nb::handle timeout) {
    std::vector<std::int64_t> words;
    MessageLanes::Sink sink{.words = &words, .limit = 1};
    take_within(self, sink, block ? timeout_seconds(timeout) : 0.0);
    if (sink.count == 0) raise(queue_empty);
    return to_python(read_message(words.data()));
}

nb::list get_many(PyMessageLanes& self, std::int64_t max_items, bool block, nb::handle timeout) {
    if (max_items < 1) raise_value_error("max_items is ", max_items, "; it must be at least 1");
    std::vector<std::int64_t> words;
    MessageLanes::Sink sink{.words = &words, .limit = max_items};
    take_within(self, sink, block ? timeout_seconds(timeout) : 0.0);
    if (sink.count == 0) raise(queue_empty);
    nb::list messages;
    for (std::size_t at = 0; at < words.size();) {
        const Message message = read_message(words.data() + at);
        messages.append(to_python(message));
        at += message.num_words;
    }
    return messages;
}

std::int64_t get_many_into(PyMessageLanes& self, nb::handle out, bool block, nb::handle timeout) {
    const Buffer buffer = int64_array(out, "out", true);
    if (buffer.shape(0) == 0) raise_value_error("out is empty; it needs room for at least one message");
    MessageLanes::Sink sink{.out = buffer.data<std::int64_t>(), .limit = buffer.shape(0)};
    take_within(self, sink, block ? timeout_seconds(timeout) : 0.0);
    if (sink.count == 0 && sink.met_bytes)
        raise_type_error("the next message is bytes, which an int64 array cannot take; use get or get_many");
    return sink.count;
}

}  // namespace

void bind_message_lanes(nb::module_& m) {
    const nb::module_ queue = nb::module_::import_("queue");
    queue_full = nb::object(queue.attr("Full")).release().ptr();  // for as long as the process lives
    queue_empty = nb::object(queue.attr("Empty")).release().ptr();
    pthread_atfork(nullptr, nullptr, [] { ++fork_generation; });

    nb::class_<PyMessageLanes>(m, "MessageLanes", nb::type_slots(queue_slots))
        .def(
            "__init__",
            [](PyMessageLanes* self, nb::handle memory, std::int64_t num_lanes, std::int64_t capacity, bool create) {
                Buffer buffer(memory, "memory", true);
                const MessageLanes lanes(buffer.data<void>(), static_cast<std::size_t>(buffer.nbytes()), num_lanes,
                                         capacity, create);
                new (self) PyMessageLanes{std::move(buffer), lanes};
            },
            "memory"_a, "num_lanes"_a, "capacity"_a, nb::kw_only(), "create"_a)
        .def_static("nbytes", &MessageLanes::nbytes, "num_lanes"_a, "capacity"_a)
        .def("put_many", &put_many, "values"_a, "block"_a = true, "timeout"_a = nb::none())
        .def("get", &get, "block"_a = true, "timeout"_a = nb::none())
        .def("get_many", &get_many, "max_items"_a = INT64_MAX, "block"_a = true, "timeout"_a = nb::none())
        .def("get_many_into", &get_many_into, "out"_a, "block"_a = true, "timeout"_a = nb::none())
        .def("qsize", [](PyMessageLanes& self) { return self.lanes.size(); })
        .def("empty", [](PyMessageLanes& self) { return self.lanes.empty(); })
        .def("full",
             [](PyMessageLanes& self) {
                 const bool has_lane = self.lane >= 0 && self.claimed_in == fork_generation;
                 return has_lane && self.lanes.is_full(self.lane);
             })
        .def("close", [](PyMessageLanes& self) {
            self.give_lane_back();
            self.closed = true;
        });
}

}  // namespace rollmill
