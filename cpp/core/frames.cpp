#include "core/frames.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "core/vector_width.h"

namespace rollmill {

// Named, not anonymous: the linker must see the resolver of each.
namespace frame_kernels {

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

// sum[i] += weight[i] * row[at[i]]
ROLLMILL_EACH_VECTOR_WIDTH
void add_picked(std::int32_t* __restrict sum, const std::int32_t* __restrict row, const std::int32_t* __restrict at,
                const std::int32_t* __restrict weight, std::int64_t count) noexcept {
    for (std::int64_t i = 0; i < count; ++i) sum[i] += weight[i] * row[at[i]];
}

// dst = sum / total to nearest. Both are below 2^24, so float32 holds them, and its quotient, correctly rounded, is an
// integer or above only where the exact one is: that is at least 1 / total away from the next integer.
ROLLMILL_EACH_VECTOR_WIDTH
void divide(std::uint8_t* __restrict dst, const std::int32_t* __restrict sum, std::int32_t total,
            std::int64_t count) noexcept {
    const auto divisor = static_cast<float>(total);
    for (std::int64_t i = 0; i < count; ++i)
        dst[i] = static_cast<std::uint8_t>(static_cast<std::int32_t>(static_cast<float>(sum[i] + total / 2) / divisor));
}

}  // namespace frame_kernels

namespace {

// Which old pixels a new one covers along one axis, in units in which both have whole sizes.
struct Axis {
    std::int64_t taps;                  // most old pixels that a new one touches
    std::int32_t size;                  // of a new pixel: the sum of its weights
    std::vector<std::int32_t> at;       // [taps, new pixels]: the old pixel
    std::vector<std::int32_t> weight;   // [taps, new pixels]: how much of it; 0 behind a pixel's last one
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
            axis.weight[static_cast<std::size_t>(tap * to + i)] = static_cast<std::int32_t>(std::max<std::int64_t>(end - begin, 0));
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
          lines_(static_cast<std::size_t>(from.width)),
          sums_(static_cast<std::size_t>(to.width)) {}

    void operator()(std::uint8_t* dst, const std::uint8_t* src) noexcept {
        for (std::int64_t y = 0; y < to_.height; ++y) {
            for (std::int64_t tap = 0; tap < down_.taps; ++tap) {
                const auto entry = static_cast<std::size_t>(tap * to_.height + y);
                const std::uint8_t* row = src + down_.at[entry] * from_.width;
                if (tap == 0) frame_kernels::start_sum(lines_.data(), row, down_.weight[entry], from_.width);
                else if (down_.weight[entry] != 0)
                    frame_kernels::add_row(lines_.data(), row, down_.weight[entry], from_.width);
            }
            std::fill(sums_.begin(), sums_.end(), 0);
            for (std::int64_t tap = 0; tap < across_.taps; ++tap)
                frame_kernels::add_picked(sums_.data(), lines_.data(), across_.at.data() + tap * to_.width,
                                          across_.weight.data() + tap * to_.width, to_.width);
            frame_kernels::divide(dst + y * to_.width, sums_.data(), down_.size * across_.size, to_.width);
        }
    }

   private:
    FrameShape from_;
    FrameShape to_;
    Axis down_;
    Axis across_;
    std::vector<std::int32_t> lines_;
    std::vector<std::int32_t> sums_;
};

}  // namespace

void push_frames(std::uint8_t* stacks, const std::uint8_t* frames, const std::uint8_t* fresh, std::int64_t rows,
                 std::int64_t depth, FrameShape from, FrameShape to) {
    Shrink shrink(from, to);
    const std::int64_t frame = to.height * to.width;
    const auto older = static_cast<std::size_t>((depth - 1) * frame);
    for (std::int64_t row = 0; row < rows; ++row) {
        std::uint8_t* stack = stacks + row * depth * frame;
        if (fresh[row] != 0) std::memset(stack, 0, older);
        else std::memmove(stack, stack + frame, older);
        shrink(stack + older, frames + row * from.height * from.width);
    }
}

}  // namespace rollmill
