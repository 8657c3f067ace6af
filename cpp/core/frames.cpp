#include "core/frames.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "core/vector_width.h"

namespace rollmill {

// Named, not anonymous: the linker must see the resolver of each.
namespace frame_kernels {

constexpr std::int64_t block = 16;  // lines at once: a vector register of each

// sum = weight * row, or sum += weight * row.
ROLLMILL_EACH_VECTOR_WIDTH
void start_sum(std::int32_t* __restrict sum, const std::uint8_t* __restrict row, std::int32_t weight,
               std::int64_t count) noexcept {
    for (std::int64_t i = 0; i < count; ++i) sum[i] = weight * row[i];
}

ROLLMILL_EACH_VECTOR_WIDTH
void add_row(std::int32_t* __restrict sum, const std::uint8_t* __restrict row, std::int32_t weight,
             std::int64_t count) noexcept {
    for (std::int64_t i = 0; i < count; ++i) sum[i] += weight * row[i];
}

// columns[x, line] = lines[line, x]
ROLLMILL_EACH_VECTOR_WIDTH
void transpose(std::int32_t* __restrict columns, const std::int32_t* __restrict lines, std::int64_t width) noexcept {
    for (std::int64_t x = 0; x < width; ++x)
        for (std::int64_t line = 0; line < block; ++line) columns[x * block + line] = lines[line * width + x];
}

// dst[i, line] = the sum over taps of weight[tap, i] * columns[at[tap, i], line], divided by `total`, to nearest. Sums
// and `total` are below 2^24, so float32 holds them, and its quotient, correctly rounded, reaches an integer only where
// the exact one does, which is at least 1 / total away from the next integer otherwise.
ROLLMILL_EACH_VECTOR_WIDTH
void average(std::uint8_t* __restrict dst, const std::int32_t* __restrict columns, const std::int32_t* __restrict at,
             const std::int32_t* __restrict weight, std::int64_t taps, std::int64_t count, std::int32_t total) noexcept {
    const auto divisor = static_cast<float>(total);
    for (std::int64_t i = 0; i < count; ++i) {
        std::int32_t sum[block];
        for (std::int64_t line = 0; line < block; ++line) sum[line] = total / 2;
        for (std::int64_t tap = 0; tap < taps; ++tap) {
            const std::int32_t* column = columns + at[tap * count + i] * block;
            const std::int32_t part = weight[tap * count + i];
            for (std::int64_t line = 0; line < block; ++line) sum[line] += part * column[line];
        }
        for (std::int64_t line = 0; line < block; ++line)
            dst[i * block + line] =
                static_cast<std::uint8_t>(static_cast<std::int32_t>(static_cast<float>(sum[line]) / divisor));
    }
}

ROLLMILL_EACH_VECTOR_WIDTH
void pick_line(std::uint8_t* __restrict dst, const std::uint8_t* __restrict src, std::int64_t count) noexcept {
    for (std::int64_t i = 0; i < count; ++i) dst[i] = src[i * block];
}

}  // namespace frame_kernels

namespace {

using frame_kernels::block;

// Which old pixels a new one covers along one axis, in units in which both have whole sizes.
struct Axis {
    std::int64_t taps;                 // most old pixels that a new one touches
    std::int32_t size;                 // of a new pixel: the sum of its weights
    std::vector<std::int32_t> at;      // [taps, new pixels]: the old pixel
    std::vector<std::int32_t> weight;  // [taps, new pixels]: how much of it; 0 behind a pixel's last one
};

Axis cover(std::int64_t from, std::int64_t to) {
    const std::int64_t common = std::gcd(from, to);
    const std::int64_t old_size = to / common;
    const std::int64_t new_size = from / common;
    Axis axis{(new_size + old_size - 2) / old_size + 1, static_cast<std::int32_t>(new_size), {}, {}};
    axis.at.resize(static_cast<std::size_t>(axis.taps * to));
    axis.weight.resize(axis.at.size());
    for (std::int64_t i = 0; i < to; ++i) {
        const std::int64_t first = i * new_size / old_size;
        for (std::int64_t tap = 0; tap < axis.taps; ++tap) {
            const std::int64_t pixel = std::min(first + tap, from - 1);
            const std::int64_t begin = std::max(i * new_size, (first + tap) * old_size);
            const std::int64_t end = std::min((i + 1) * new_size, (first + tap + 1) * old_size);
            axis.at[static_cast<std::size_t>(tap * to + i)] = static_cast<std::int32_t>(pixel);
            axis.weight[static_cast<std::size_t>(tap * to + i)] =
                static_cast<std::int32_t>(std::max<std::int64_t>(end - begin, 0));
        }
    }
    return axis;
}

class Shrink {
   public:
    Shrink(FrameShape from, FrameShape to)
        : from_(from),
          to_(to),
          down_(cover(from.height, to.height)),
          across_(cover(from.width, to.width)),
          lines_(static_cast<std::size_t>(block * from.width)),
          columns_(lines_.size()),
          means_(static_cast<std::size_t>(block * to.width)) {}

    // The last block may have fewer lines than a block holds; what stands behind them is computed and left.
    void operator()(std::uint8_t* dst, const std::uint8_t* src) noexcept {
        for (std::int64_t begin = 0; begin < to_.height; begin += block) {
            const std::int64_t count = std::min(block, to_.height - begin);
            for (std::int64_t line = 0; line < count; ++line) add_rows(lines_.data() + line * from_.width, src, begin + line);
            frame_kernels::transpose(columns_.data(), lines_.data(), from_.width);
            frame_kernels::average(means_.data(), columns_.data(), across_.at.data(), across_.weight.data(), across_.taps,
                                   to_.width, down_.size * across_.size);
            for (std::int64_t line = 0; line < count; ++line)
                frame_kernels::pick_line(dst + (begin + line) * to_.width, means_.data() + line, to_.width);
        }
    }

   private:
    void add_rows(std::int32_t* sum, const std::uint8_t* src, std::int64_t y) noexcept {
        for (std::int64_t tap = 0; tap < down_.taps; ++tap) {
            const auto entry = static_cast<std::size_t>(tap * to_.height + y);
            const std::uint8_t* row = src + down_.at[entry] * from_.width;
            if (tap == 0) frame_kernels::start_sum(sum, row, down_.weight[entry], from_.width);
            else if (down_.weight[entry] != 0) frame_kernels::add_row(sum, row, down_.weight[entry], from_.width);
        }
    }

    FrameShape from_;
    FrameShape to_;
    Axis down_;
    Axis across_;
    std::vector<std::int32_t> lines_;    // [block, old width]
    std::vector<std::int32_t> columns_;  // [old width, block]
    std::vector<std::uint8_t> means_;    // [new width, block]
};

}  // namespace

void push_frames(std::uint8_t* stacks, const std::uint8_t* frames, std::span<const std::uint8_t> fresh,
                 std::int64_t depth, FrameShape from, FrameShape to) {
    Shrink shrink(from, to);
    const std::int64_t frame = to.height * to.width;
    const auto older = static_cast<std::size_t>((depth - 1) * frame);
    for (std::int64_t row = 0; row < std::ssize(fresh); ++row) {
        std::uint8_t* stack = stacks + row * depth * frame;
        if (fresh[row] != 0) std::memset(stack, 0, older);
        else std::memmove(stack, stack + frame, older);
        shrink(stack + older, frames + row * from.height * from.width);
    }
}

}  // namespace rollmill
