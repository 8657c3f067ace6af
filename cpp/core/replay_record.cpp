#include "core/replay_record.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "core/replay_ring.h"

namespace rollmill {

RecordLayout::RecordLayout(const RingShape& shape) : offsets(shape.fields.size()) {
    std::size_t end = shape.linked ? flags_at + 1 : 0;
    std::vector<std::size_t> order(offsets.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return shape.fields[a].bytes < shape.fields[b].bytes; });
    for (const std::size_t field : order) {
        const std::size_t bytes = shape.fields[field].bytes;
        offsets[field] = rounded_up(end, bytes >= 8 ? 8 : std::bit_floor(std::max(bytes, std::size_t{1})));
        end = offsets[field] + bytes;
    }
    const std::size_t tight = std::max(rounded_up(end, 8), std::size_t{8}), lines = rounded_up(tight, line_bytes);
    stride = tight <= line_bytes ? std::bit_ceil(tight) : (lines - tight) * 8 <= tight ? lines : tight;
}

}  // namespace rollmill
