#include <algorithm>
#include <random>
#include <vector>

#include "check.h"
#include "core/frames.h"

namespace {

using rollmill::FrameShape;
using Bytes = std::vector<std::uint8_t>;

Bytes random_bytes(std::int64_t count, unsigned seed) {
    std::mt19937 random(seed);
    Bytes bytes(static_cast<std::size_t>(count));
    for (std::uint8_t& value : bytes) value = static_cast<std::uint8_t>(random());
    return bytes;
}

// Length that old pixel `old` and new pixel `fresh` share on an axis, in units of which an old one has `to`.
std::int64_t shared(std::int64_t old, std::int64_t fresh, std::int64_t from, std::int64_t to) {
    return std::max<std::int64_t>(std::min((old + 1) * to, (fresh + 1) * from) - std::max(old * to, fresh * from), 0);
}

std::uint8_t mean(const std::uint8_t* frame, FrameShape from, FrameShape to, std::int64_t y, std::int64_t x) {
    std::int64_t sum = 0;
    for (std::int64_t v = 0; v < from.height; ++v)
        for (std::int64_t u = 0; u < from.width; ++u)
            sum += shared(v, y, from.height, to.height) * shared(u, x, from.width, to.width) * frame[v * from.width + u];
    const std::int64_t area = from.height * from.width;
    return static_cast<std::uint8_t>((2 * sum + area) / (2 * area));
}

void check_push(FrameShape from, FrameShape to, std::int64_t depth) {
    const std::int64_t rows = 3;
    const std::int64_t size = to.height * to.width;
    const Bytes fresh = {0, 1, 0};
    Bytes frames = random_bytes(rows * from.height * from.width, 3);
    std::fill(frames.begin(), frames.begin() + from.height * from.width, std::uint8_t{255});
    const Bytes before = random_bytes(rows * depth * size, 4);
    Bytes stacks = before;
    rollmill::push_frames(stacks.data(), frames.data(), fresh, depth, from, to);
    for (std::int64_t row = 0; row < rows; ++row)
        for (std::int64_t k = 0; k < depth; ++k)
            for (std::int64_t i = 0; i < size; ++i) {
                const auto at = static_cast<std::size_t>((row * depth + k) * size + i);
                if (k + 1 == depth)
                    CHECK(stacks[at] == mean(frames.data() + row * from.height * from.width, from, to, i / to.width, i % to.width));
                else
                    CHECK(stacks[at] == (fresh[static_cast<std::size_t>(row)] != 0 ? 0 : before[at + static_cast<std::size_t>(size)]));
            }
}

}  // namespace

TEST(frames_are_shrunk_by_area_and_stacked) {
    check_push({21, 16}, {8, 8}, 4);
    check_push({210, 160}, {21, 21}, 2);
    check_push({25, 16}, {7, 13}, 1);
    check_push({9, 9}, {9, 9}, 3);   // nothing to shrink
    check_push({12, 8}, {4, 2}, 2);  // whole pixels
    check_push({40, 30}, {1, 1}, 2);
    check_push({5, 7}, {4, 7}, 2);
}

TEST(means_of_a_whole_screen_are_exact) {
    const FrameShape from{255, 257};  // 65,535 pixels, the most, whose sums nearly fill 24 bits
    const FrameShape to{2, 2};
    for (const unsigned seed : {1u, 2u, 3u}) {
        const Bytes frame = random_bytes(from.height * from.width, seed);
        Bytes stack(4);
        const std::uint8_t fresh = 1;
        rollmill::push_frames(stack.data(), frame.data(), {&fresh, 1}, 1, from, to);
        for (std::int64_t i = 0; i < 4; ++i) CHECK(stack[static_cast<std::size_t>(i)] == mean(frame.data(), from, to, i / 2, i % 2));
    }
}
