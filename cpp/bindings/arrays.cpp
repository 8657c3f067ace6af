// Arrays for Python: shapes and every index are checked here, once; the work then runs without the GIL.
#include <nanobind/stl/string.h>

#include <optional>

#include "bindings/buffers.h"
#include "core/activations.h"
#include "core/frames.h"
#include "core/images.h"
#include "core/rows.h"

namespace rollmill {
namespace {

// Below this, giving the GIL away and getting it back costs more than the copy.
constexpr std::int64_t long_copy_bytes = 64 * 1024;

template <class Work>
void run_copy(std::int64_t bytes, Work&& work) {
    std::optional<nb::gil_scoped_release> released;
    if (bytes >= long_copy_bytes) released.emplace();
    work();
}

void check_index(const Buffer& index, std::int64_t num_rows, const char* of) {
    const auto values = index.span<std::int64_t>();
    for (std::int64_t m = 0; m < std::ssize(values); ++m)
        if (values[m] < 0 || values[m] >= num_rows)
            raise_index_error("index[", m, "] is ", values[m], "; ", of, " has rows 0 to ", num_rows - 1);
}

void check_rows(const Buffer& dst, const Buffer& src) {
    if (dst.ndim() < 1 || src.ndim() < 1) raise_value_error("dst and src must have at least one axis, the rows");
    if (dst.row_bytes() != src.row_bytes())
        raise_value_error("a row of dst has ", dst.row_bytes(), " bytes and a row of src ", src.row_bytes(),
                          "; they must be the same");
}

void gather(nb::handle dst_array, nb::handle src_array, nb::handle index_array) {
    const Buffer dst(dst_array, "dst", true);
    const Buffer src(src_array, "src", false);
    const Buffer index = int64_array(index_array, "index", false);
    check_rows(dst, src);
    if (dst.shape(0) != index.shape(0))
        raise_value_error("dst has ", dst.shape(0), " rows and index ", index.shape(0),
                          " entries; they must be the same");
    check_index(index, src.shape(0), "src");
    run_copy(dst.nbytes(), [&] {
        gather_rows(dst.data<std::byte>(), src.data<std::byte>(), index.span<std::int64_t>(),
                    static_cast<std::size_t>(dst.row_bytes()));
    });
}

void check_segment(const Segment& s, std::int64_t at, const Buffer& dst, const Buffer& src) {
    // subtracted, not added: the sum of two large numbers could wrap
    if (s.slot >= 0 && s.slot < src.shape(0) && s.num_rows >= 0 && s.row >= 0 && s.row <= src.shape(2) - s.num_rows &&
        s.column >= 0 && s.column <= dst.shape(1) - s.num_rows)
        return;
    raise_index_error("segments[", at, "] is (slot ", s.slot, ", row0 ", s.row, ", num_rows ", s.num_rows, ", column ",
                      s.column, "); src has ", src.shape(0), " slots of ", src.shape(2), " rows, dst has ", dst.shape(1),
                      " columns");
}

void gather_trajectories(nb::handle dst_array, nb::handle src_array, nb::handle segments_array, std::int64_t steps) {
    const Buffer dst(dst_array, "dst", true);
    const Buffer src(src_array, "src", false);
    const Buffer segments(segments_array, "segments", false);
    if (!segments.is_int64() || segments.ndim() != 2 || segments.shape(1) != 4)
        raise_type_error("segments must be an int64 array [S, 4] of (slot, row0, num_rows, column)");
    if (dst.ndim() < 2 || src.ndim() < 3)
        raise_value_error("dst must be [T, N, ...] and src [num_slots, T', B, ...]; they have ", dst.ndim(), " and ",
                          src.ndim(), " axes");
    std::int64_t dst_bytes = dst.itemsize();
    for (int axis = 2; axis < dst.ndim(); ++axis) dst_bytes *= dst.shape(axis);
    std::int64_t src_bytes = src.itemsize();
    for (int axis = 3; axis < src.ndim(); ++axis) src_bytes *= src.shape(axis);
    if (dst_bytes != src_bytes)
        raise_value_error("a row of dst has ", dst_bytes, " bytes and a row of src ", src_bytes,
                          "; they must be the same");
    if (steps < 0 || steps > dst.shape(0) || steps > src.shape(1))
        raise_value_error("steps is ", steps, "; dst has ", dst.shape(0), " and src ", src.shape(1));
    const auto list = segments.span<Segment>();
    std::int64_t rows = 0;
    for (std::int64_t i = 0; i < std::ssize(list); ++i) {
        check_segment(list[i], i, dst, src);
        rows += list[i].num_rows;
    }
    run_copy(rows * steps * dst_bytes, [&] {
        gather_segments(dst.data<std::byte>(), src.data<std::byte>(), list, steps, dst.shape(1), src.shape(1),
                        src.shape(2), static_cast<std::size_t>(dst_bytes));
    });
}

bool is_float32(const Buffer& buffer, const char* name) {
    if (buffer.format() == 'f') return true;
    if (buffer.format() != 'H')
        raise_type_error(name, " must be float32, or bfloat16 given as its bits in uint16");
    return false;
}

void gather_images_checked(nb::handle dst_array, nb::handle src_array, nb::handle index_array, bool channels_first,
                           double scale) {
    const Buffer dst(dst_array, "dst", true);
    const Buffer src(src_array, "src", false);
    const Buffer index = int64_array(index_array, "index", false);
    const bool is_float = is_float32(dst, "dst");
    if (src.format() != 'B') raise_type_error("src must be uint8");
    if (dst.ndim() != 4 || src.ndim() != 4)
        raise_value_error("dst must be [M, H, W, C] and src [R, C, H, W] or [R, H, W, C]; they have ", dst.ndim(),
                          " and ", src.ndim(), " axes");
    const int channel_axis = channels_first ? 1 : 3;
    const int height_axis = channels_first ? 2 : 1;
    if (dst.shape(3) != src.shape(channel_axis) || dst.shape(1) != src.shape(height_axis) ||
        dst.shape(2) != src.shape(height_axis + 1))
        raise_value_error("the images of dst and src have different height, width or channels (channels_first is ",
                          channels_first ? "True" : "False", ")");
    if (dst.shape(0) != index.shape(0))
        raise_value_error("dst has ", dst.shape(0), " rows and index ", index.shape(0),
                          " entries; they must be the same");
    check_index(index, src.shape(0), "src");
    const ImageShape shape{dst.shape(3), dst.shape(1) * dst.shape(2)};
    const auto copy = [&](auto* to) {
        gather_images(to, src.data<std::uint8_t>(), index.span<std::int64_t>(), shape, channels_first,
                      static_cast<float>(scale));
    };
    run_copy(dst.nbytes(), [&] { is_float ? copy(dst.data<float>()) : copy(dst.data<std::uint16_t>()); });
}

// Most pixels of a frame to be shrunk: what keeps its sums below 2^24 (see core/frames.cpp).
constexpr std::int64_t most_pixels = 65'535;

void push_frames_checked(nb::handle stacks_array, nb::handle frames_array, nb::handle fresh_array) {
    const Buffer stacks(stacks_array, "stacks", true);
    const Buffer frames(frames_array, "frames", false);
    const Buffer fresh(fresh_array, "fresh", false);
    if (stacks.format() != 'B' || frames.format() != 'B')
        raise_type_error("stacks and frames must be uint8 ('B'); their formats are '", stacks.format(), "' and '",
                         frames.format(), "'");
    if (fresh.format() != '?' || fresh.ndim() != 1)
        raise_type_error("fresh must be bool ('?') with one axis; it is '", fresh.format(), "' with ", fresh.ndim());
    if (stacks.ndim() != 4 || frames.ndim() != 3)
        raise_value_error("stacks must be [N, depth, h, w] and frames [N, H, W]; they have ", stacks.ndim(), " and ",
                          frames.ndim(), " axes");
    if (stacks.shape(0) != frames.shape(0) || fresh.shape(0) != frames.shape(0))
        raise_value_error("stacks, frames and fresh have ", stacks.shape(0), ", ", frames.shape(0), " and ",
                          fresh.shape(0), " rows; they must be the same");
    const FrameShape from{frames.shape(1), frames.shape(2)};
    const FrameShape to{stacks.shape(2), stacks.shape(3)};
    if (stacks.shape(1) < 1 || to.height < 1 || to.width < 1 || to.height > from.height || to.width > from.width)
        raise_value_error("frames of ", from.height, " x ", from.width, " pixels cannot be shrunk to ", to.height, " x ",
                          to.width, " in stacks of ", stacks.shape(1));
    if (from.height * from.width > most_pixels)
        raise_value_error("frames have ", from.height * from.width, " pixels; at most ", most_pixels, " are allowed");
    run_copy(frames.nbytes(), [&] {
        push_frames(stacks.data<std::uint8_t>(), frames.data<std::uint8_t>(), fresh.span<std::uint8_t>(),
                    stacks.shape(1), from, to);
    });
}

Activation activation_named(const std::string& name) {
    if (name == "relu") return Activation::relu;
    if (name == "elu") return Activation::elu;
    raise_value_error("the activation is '", name, "'; allowed: 'relu', 'elu'");
}

void activate_checked(nb::handle x_array, const std::string& name) {
    const Buffer x(x_array, "x", true);
    const bool is_float = is_float32(x, "x");
    const Activation kind = activation_named(name);
    run_copy(x.nbytes(), [&] { is_float ? activate(x.span<float>(), kind) : activate(x.span<std::uint16_t>(), kind); });
}

void activation_gradient_checked(nb::handle dst_array, nb::handle gradient_array, nb::handle output_array,
                                 const std::string& name) {
    const Buffer dst(dst_array, "dst", true);
    const Buffer gradient(gradient_array, "gradient", false);
    const Buffer output(output_array, "output", false);
    const bool is_float = is_float32(dst, "dst");
    if (is_float32(gradient, "gradient") != is_float || is_float32(output, "output") != is_float)
        raise_type_error("dst, gradient and output must have one dtype");
    if (gradient.nbytes() != dst.nbytes() || output.nbytes() != dst.nbytes())
        raise_value_error("dst, gradient and output must have the same size");
    const Activation kind = activation_named(name);
    const auto run = [&](auto to) {
        using T = decltype(to)::element_type;
        activation_gradient(to, gradient.data<T>(), output.data<T>(), kind);
    };
    run_copy(dst.nbytes(), [&] { is_float ? run(dst.span<float>()) : run(dst.span<std::uint16_t>()); });
}

}  // namespace

void bind_arrays(nb::module_& m) {
    m.def("gather", &gather, "dst"_a, "src"_a, "index"_a);
    m.def("gather_trajectories", &gather_trajectories, "dst"_a, "src"_a, "segments"_a, "steps"_a);
    m.def("gather_images", &gather_images_checked, "dst"_a, "src"_a, "index"_a, nb::kw_only(), "channels_first"_a,
          "scale"_a);
    m.def("push_frames", &push_frames_checked, "stacks"_a, "frames"_a, "fresh"_a);
    m.def("activate", &activate_checked, "x"_a, "kind"_a);
    m.def("activation_gradient", &activation_gradient_checked, "dst"_a, "gradient"_a, "output"_a, "kind"_a);
}

}  // namespace rollmill
