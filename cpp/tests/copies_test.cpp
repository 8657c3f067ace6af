#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "check.h"
#include "core/images.h"
#include "core/rows.h"
#include "core/snapshot.h"

namespace {

std::vector<std::byte> random_bytes(std::size_t count, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<std::byte> bytes(count);
    for (std::byte& value : bytes) value = static_cast<std::byte>(random());
    return bytes;
}

// Rounds to bfloat16 by looking at both neighbours.
std::uint16_t nearest_bfloat16(float value) {
    const auto below = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
    const auto as_float = [](std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); };
    const auto above = static_cast<std::uint16_t>(below + 1);
    const float down = std::abs(value - as_float(below));
    const float up = std::abs(as_float(above) - value);
    if (down == up) return below % 2 == 0 ? below : above;
    return down < up ? below : above;
}

void check_gather_images(rollmill::ImageShape shape, bool first, float scale) {
    const auto [channels, pixels] = shape;
    const std::int64_t size = channels * pixels;
    const std::vector<std::byte> raw = random_bytes(static_cast<std::size_t>(3 * size), 7);
    const auto* src = reinterpret_cast<const std::uint8_t*>(raw.data());
    const std::vector<std::int64_t> index = {2, 0, 2, 1};
    std::vector<float> floats(static_cast<std::size_t>(4 * size));
    std::vector<std::uint16_t> halves(floats.size());
    rollmill::gather_images(floats.data(), src, index, shape, first, scale);
    rollmill::gather_images(halves.data(), src, index, shape, first, scale);
    for (std::int64_t m = 0; m < 4; ++m)
        for (std::int64_t p = 0; p < pixels; ++p)
            for (std::int64_t c = 0; c < channels; ++c) {
                const std::int64_t from = index[static_cast<std::size_t>(m)] * size + (first ? c * pixels + p : p * channels + c);
                const auto to = static_cast<std::size_t>(m * size + p * channels + c);
                const float value = scale * static_cast<float>(src[from]);
                CHECK(floats[to] == value);
                CHECK(halves[to] == nearest_bfloat16(value));
            }
}

}  // namespace

TEST(gather_copies_rows) {
    std::mt19937 random(4);
    for (const std::size_t row : {1u, 2u, 4u, 7u, 8u, 64u, 100u, 1000u}) {
        const std::vector<std::byte> src = random_bytes(20 * row, 5);
        std::vector<std::int64_t> index(33);
        for (auto& i : index) i = static_cast<std::int64_t>(random() % 20);
        std::vector<std::byte> dst(33 * row);
        rollmill::gather_rows(dst.data(), src.data(), index, row);
        for (std::size_t m = 0; m < 33; ++m)
            CHECK(std::memcmp(&dst[m * row], &src[static_cast<std::size_t>(index[m]) * row], row) == 0);
    }
}

TEST(gather_segments_copies_trajectories) {
    constexpr std::int64_t slots = 3, slot_steps = 6, slot_rows = 5, steps = 4, columns = 7;
    constexpr std::size_t row = 12;
    const std::vector<std::byte> src = random_bytes(slots * slot_steps * slot_rows * row, 6);
    const std::vector<rollmill::Segment> segments = {{2, 1, 3, 0}, {0, 0, 2, 3}, {1, 4, 1, 6}, {1, 0, 0, 7}};
    std::vector<std::byte> dst(steps * columns * row);
    std::vector<std::byte> expected(dst.size());
    for (const auto& s : segments)
        for (std::int64_t t = 0; t < steps; ++t)
            for (std::int64_t i = 0; i < s.num_rows; ++i)
                std::memcpy(&expected[static_cast<std::size_t>(t * columns + s.column + i) * row],
                            &src[static_cast<std::size_t>((s.slot * slot_steps + t) * slot_rows + s.row + i) * row], row);
    rollmill::gather_segments(dst.data(), src.data(), segments, steps, columns, slot_steps, slot_rows, row);
    CHECK(dst == expected);
}

TEST(gather_images_converts_every_layout) {
    for (const std::int64_t channels : {1, 2, 3, 4, 5, 9, 9000}) {
        const std::int64_t pixels = channels > 100 ? 3 : 33 * 65;
        for (const bool first : {false, true})
            for (const float scale : {1.0f / 255.0f, 1.0f}) check_gather_images({channels, pixels}, first, scale);
    }
}

TEST(snapshots_are_whole_or_torn) {
    constexpr std::size_t size = (1 << 18) + 3;  // no multiple of a word
    constexpr int versions = 1000;
    alignas(8) std::int64_t header[2] = {0, 0};
    std::vector<std::uint64_t> storage(size / 8 + 1);
    auto* block = reinterpret_cast<std::byte*>(storage.data());
    std::thread writer([&] {
        std::vector<std::byte> source(size);
        for (int version = 1; version <= versions; ++version) {
            std::fill(source.begin(), source.end(), static_cast<std::byte>(version));
            rollmill::snapshot_write(header, block, source, version);
            std::this_thread::yield();  // a reader may start here, and be overtaken
        }
    });
    std::vector<std::byte> out(size);
    std::int64_t last = 0;
    while (last < versions) {
        const std::int64_t version = rollmill::snapshot_read(header, out, block);
        if (version == rollmill::torn) continue;
        CHECK(version >= last);
        last = version;
        CHECK(std::all_of(out.begin(), out.end(), [&](std::byte b) { return b == static_cast<std::byte>(version); }));
    }
    writer.join();
}
