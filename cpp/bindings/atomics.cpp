// Snapshots and single atomic words for Python. All atomic operations are sequentially consistent.
#include <nanobind/stl/optional.h>

#include <atomic>
#include <optional>

#include "bindings/buffers.h"
#include "core/snapshot.h"

namespace rollmill {
namespace {

struct Block {
    Buffer header;
    Buffer shared;
    Buffer own;
};

Block check_block(nb::handle header_array, nb::handle shared_array, const char* shared_name, bool shared_writable,
                  nb::handle own_array, const char* own_name) {
    Block block{int64_array(header_array, "header", true), Buffer(shared_array, shared_name, shared_writable),
                Buffer(own_array, own_name, !shared_writable)};
    if (block.header.shape(0) != 2) raise_value_error("header must be an int64 array of 2: sequence and version");
    if (block.shared.nbytes() != block.own.nbytes())
        raise_value_error(shared_name, " has ", block.shared.nbytes(), " bytes and ", own_name, " ", block.own.nbytes(),
                          "; they must be the same");
    if (reinterpret_cast<std::uintptr_t>(block.shared.data<void>()) % 8 != 0)
        raise_value_error(shared_name, " must start at a multiple of 8 bytes");
    return block;
}

void write(nb::handle header, nb::handle dst, nb::handle src, std::optional<std::int64_t> given) {
    const Block block = check_block(header, dst, "dst", true, src, "src");
    const std::int64_t version = given ? *given : block.header.data<std::int64_t>()[1] + 1;
    if (version < 0) raise_value_error("version is ", version, "; it must not be negative");
    const nb::gil_scoped_release released;
    snapshot_write(block.header.data<std::int64_t>(), block.shared.data<std::byte>(), block.own.span<std::byte>(),
                   version);
}

std::int64_t read(nb::handle header, nb::handle dst, nb::handle src) {
    const Block block = check_block(header, src, "src", false, dst, "dst");
    const nb::gil_scoped_release released;
    return snapshot_read(block.header.data<std::int64_t>(), block.own.span<std::byte>(), block.shared.data<std::byte>());
}

// Calls `operation` with an atomic view of array[index].
template <class Operation>
auto with_word(nb::handle array, std::int64_t index, Operation&& operation) {
    const Buffer words = int64_array(array, "array", true);
    if (index < 0 || index >= words.shape(0))
        raise_index_error("index is ", index, "; the array has 0 to ", words.shape(0) - 1);
    return operation(std::atomic_ref<std::int64_t>(words.data<std::int64_t>()[index]));
}

}  // namespace

void bind_atomics(nb::module_& m) {
    using Word = std::atomic_ref<std::int64_t>;
    m.def("snapshot_write", &write, "header"_a, "dst"_a, "src"_a, "version"_a = nb::none());
    m.def("snapshot_read", &read, "header"_a, "dst"_a, "src"_a);
    m.def(
        "atomic_load",
        [](nb::handle array, std::int64_t i) { return with_word(array, i, [](Word w) { return w.load(); }); },
        "array"_a, "index"_a);
    m.def(
        "atomic_store",
        [](nb::handle array, std::int64_t i, std::int64_t value) {
            with_word(array, i, [=](Word w) { w.store(value); });
        },
        "array"_a, "index"_a, "value"_a);
    m.def(
        "atomic_add",
        [](nb::handle array, std::int64_t i, std::int64_t delta) {
            return with_word(array, i, [=](Word w) { return w.fetch_add(delta); });
        },
        "array"_a, "index"_a, "delta"_a);
    m.def(
        "atomic_compare_exchange",
        [](nb::handle array, std::int64_t i, std::int64_t expected, std::int64_t desired) {
            return with_word(array, i, [=](Word w) {
                std::int64_t found = expected;
                return w.compare_exchange_strong(found, desired);
            });
        },
        "array"_a, "index"_a, "expected"_a, "desired"_a);
}

}  // namespace rollmill
