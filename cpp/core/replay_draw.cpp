#include "core/replay_draw.h"

#include "core/racing_copy.h"

namespace rollmill {

void DrawnBatch::copy_pending() const noexcept {
    constexpr std::size_t ahead = 4, most_prefetched = 8 * line_bytes;
    for (const Column& column : columns)
        with_racing_copy(column.bytes, [&](auto&& copy) {
            for (std::int64_t t = 0; t < column.times; ++t) {
                const std::int64_t* index = column.index + t * size();
                std::byte* to = column.to + static_cast<std::size_t>(t * size()) * column.bytes;
                const auto source = [&](std::int64_t entry) {
                    return column.from + static_cast<std::size_t>(entry) * column.stride;
                };
                for (std::size_t i = 0; i < pending.size(); ++i) {
                    if (!column.prefetched && i + ahead < pending.size()) {
                        const std::byte* next = source(std::max(index[pending[i + ahead]], std::int64_t{0}));
                        const std::size_t bytes = std::min(column.bytes, most_prefetched);
                        for (std::size_t at = 0; at < bytes; at += line_bytes) __builtin_prefetch(next + at);
                    }
                    const std::int64_t entry = index[pending[i]];
                    if (entry >= 0) copy(to + static_cast<std::size_t>(pending[i]) * column.bytes, source(entry));
                }
            }
        });
}

}  // namespace rollmill
