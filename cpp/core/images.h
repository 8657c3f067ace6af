// uint8 images into scaled floating-point batches, channels last, in one pass over memory.
#pragma once

#include <cstdint>
#include <span>

namespace rollmill {

struct ImageShape {
    std::int64_t channels;
    std::int64_t pixels;  // height x width
};

// dst[m, pixel, channel] = scale * src[index[m]]; `src` holds images as [channels, pixels] when `channels_first`, else as
// [pixels, channels]. The product is rounded once to float32, and for bfloat16 (its bits, in uint16) once more, to nearest
// even. The caller has checked every index. O(index.size() * channels * pixels); one thread.
void gather_images(float* dst, const std::uint8_t* src, std::span<const std::int64_t> index, ImageShape shape,
                   bool channels_first, float scale) noexcept;
void gather_images(std::uint16_t* dst, const std::uint8_t* src, std::span<const std::int64_t> index, ImageShape shape,
                   bool channels_first, float scale) noexcept;

}  // namespace rollmill
