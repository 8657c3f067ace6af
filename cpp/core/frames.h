// Grey uint8 frames shrunk by area and stacked, as Atari agents see them.
#pragma once

#include <cstdint>
#include <span>

namespace rollmill {

struct FrameShape {
    std::int64_t height;
    std::int64_t width;
};

// A frame of `from` becomes one of `to`, which is no larger on either axis: every new pixel is the mean of the area that it
// covers, of old pixels in part, too; computed in integers and rounded to nearest, halves upwards.
// For each row, as many as `fresh` has, the oldest of its `depth` frames in `stacks` [rows, depth, to] gives way to the shrunk
// `frames[row]` [from], newest last; where `fresh[row]` is not zero, those before it are zeros.
// One thread; O(rows * (from.height * from.width + depth * to.height * to.width)). Allocates tables; may throw
// std::bad_alloc, and then nothing has been written.
void push_frames(std::uint8_t* stacks, const std::uint8_t* frames, std::span<const std::uint8_t> fresh,
                 std::int64_t depth, FrameShape from, FrameShape to);

}  // namespace rollmill
