// The Python module rollmill.native._core: checks arguments, releases the GIL, calls cpp/core.
#include "bindings/buffers.h"

NB_MODULE(_core, m) {
    namespace nb = nanobind;
    rollmill::bind_lane_ring(m);
    rollmill::bind_message_lanes(m);
    rollmill::bind_arrays(m);
    rollmill::bind_atomics(m);
    rollmill::bind_sum_tree(m);
    rollmill::bind_replay_slots(m);
    rollmill::bind_replay_ring(m);
    rollmill::bind_replay_load(m);
}
