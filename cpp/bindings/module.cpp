// The Python module rollmill.native._core: checks arguments, releases the GIL, calls cpp/core.
#include <sys/prctl.h>

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
    m.def(
        "set_pdeathsig",
        [](int signal) {
            if (prctl(PR_SET_PDEATHSIG, signal) != 0)
                rollmill::raise_value_error("signal is " + std::to_string(signal) + "; it must be 0 (none) to 64");
        },
        nb::arg("signal"));
}
