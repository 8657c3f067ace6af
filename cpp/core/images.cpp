#include "core/images.h"

#include <algorithm>
#include <bit>
#include <cstddef>

#include "core/vector_width.h"

namespace rollmill {

// Named, not anonymous: the linker must see the resolver of each.
namespace image_kernels {

ROLLMILL_EACH_VECTOR_WIDTH
void convert(float* __restrict dst, const std::uint8_t* __restrict src, std::int64_t count, float scale) noexcept {
    for (std::int64_t i = 0; i < count; ++i) dst[i] = scale * static_cast<float>(src[i]);
}

ROLLMILL_EACH_VECTOR_WIDTH
void convert(std::uint16_t* __restrict dst, const std::uint8_t* __restrict src, std::int64_t count, float scale) noexcept {
    for (std::int64_t i = 0; i < count; ++i) {
        const auto bits = std::bit_cast<std::uint32_t>(scale * static_cast<float>(src[i]));
        dst[i] = static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
    }
}

// As `convert` to bfloat16 with a scale of 1, without rounding: bfloat16 holds every integer up to 256.
ROLLMILL_EACH_VECTOR_WIDTH
void convert_exactly(std::uint16_t* __restrict dst, const std::uint8_t* __restrict src, std::int64_t count) noexcept {
    for (std::int64_t i = 0; i < count; ++i)
        dst[i] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(static_cast<float>(src[i])) >> 16);
}

// dst[pixel, channel] = src[channel, pixel] for `count` pixels; the channels lie `stride` bytes apart.
ROLLMILL_EACH_VECTOR_WIDTH
void interleave4(std::uint32_t* __restrict dst, const std::uint8_t* __restrict src, std::int64_t stride,
                 std::int64_t count) noexcept {
    static_assert(std::endian::native == std::endian::little);
    for (std::int64_t i = 0; i < count; ++i)
        dst[i] = static_cast<std::uint32_t>(src[i]) | static_cast<std::uint32_t>(src[i + stride]) << 8 |
                 static_cast<std::uint32_t>(src[i + 2 * stride]) << 16 |
                 static_cast<std::uint32_t>(src[i + 3 * stride]) << 24;
}

ROLLMILL_EACH_VECTOR_WIDTH
void interleave3(std::uint8_t* __restrict dst, const std::uint8_t* __restrict src, std::int64_t stride,
                 std::int64_t count) noexcept {
    for (std::int64_t i = 0; i < count; ++i) {
        dst[3 * i] = src[i];
        dst[3 * i + 1] = src[i + stride];
        dst[3 * i + 2] = src[i + 2 * stride];
    }
}

}  // namespace image_kernels

namespace {

void convert_run(float* dst, const std::uint8_t* src, std::int64_t count, float scale) noexcept {
    image_kernels::convert(dst, src, count, scale);
}

void convert_run(std::uint16_t* dst, const std::uint8_t* src, std::int64_t count, float scale) noexcept {
    if (scale == 1.0f) return image_kernels::convert_exactly(dst, src, count);
    image_kernels::convert(dst, src, count, scale);
}

constexpr std::int64_t block_bytes = 8192;  // of interleaved pixels: stays in the first-level cache
constexpr std::int64_t bytes_ahead = 512;

void interleave(std::uint8_t* dst, const std::uint8_t* src, std::int64_t stride, std::int64_t count,
                std::int64_t channels) noexcept {
    if (channels == 4) return image_kernels::interleave4(reinterpret_cast<std::uint32_t*>(dst), src, stride, count);
    if (channels == 3) return image_kernels::interleave3(dst, src, stride, count);
    for (std::int64_t c = 0; c < channels; ++c)
        for (std::int64_t i = 0; i < count; ++i) dst[i * channels + c] = src[i + c * stride];
}

template <class T>
void convert_image(T* dst, const std::uint8_t* src, ImageShape shape, bool channels_first, float scale) noexcept {
    if (!channels_first || shape.channels == 1)
        return convert_run(dst, src, shape.pixels * shape.channels, scale);
    // More channels than a block has bytes would be no image; each block then is one pixel, converted channel by
    // channel.
    alignas(64) std::uint8_t block[block_bytes];
    const std::int64_t pixels = block_bytes / shape.channels;
    if (pixels == 0) {
        for (std::int64_t i = 0; i < shape.pixels; ++i)
            for (std::int64_t c = 0; c < shape.channels; ++c)
                convert_run(dst + i * shape.channels + c, src + c * shape.pixels + i, 1, scale);
        return;
    }
    for (std::int64_t start = 0; start < shape.pixels; start += pixels) {
        const std::int64_t count = std::min(pixels, shape.pixels - start);
        interleave(block, src + start, shape.pixels, count, shape.channels);
        convert_run(dst + start * shape.channels, block, count * shape.channels, scale);
    }
}

template <class T>
void gather(T* dst, const std::uint8_t* src, std::span<const std::int64_t> index, ImageShape shape, bool channels_first,
            float scale) noexcept {
    const std::int64_t size = shape.channels * shape.pixels, count = std::ssize(index);
    for (std::int64_t m = 0; m < count; ++m) {
        if (m + 1 < count) {
            const std::uint8_t* next = src + index[m + 1] * size;
            for (std::int64_t at = 0; at < std::min(size, bytes_ahead); at += 64) __builtin_prefetch(next + at);
        }
        convert_image(dst + m * size, src + index[m] * size, shape, channels_first, scale);
    }
}

}  // namespace

void gather_images(float* dst, const std::uint8_t* src, std::span<const std::int64_t> index, ImageShape shape,
                   bool channels_first, float scale) noexcept {
    gather(dst, src, index, shape, channels_first, scale);
}

void gather_images(std::uint16_t* dst, const std::uint8_t* src, std::span<const std::int64_t> index, ImageShape shape,
                   bool channels_first, float scale) noexcept {
    gather(dst, src, index, shape, channels_first, scale);
}

}  // namespace rollmill
