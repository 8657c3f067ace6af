// The Python module rollmill.native._core: checks arguments, releases the GIL, calls cpp/core.
#include <nanobind/nanobind.h>
#include <sys/prctl.h>

#include <cerrno>
#include <stdexcept>
#include <string>

namespace nb = nanobind;

NB_MODULE(_core, m) {
    m.def(
        "set_pdeathsig",
        [](int signal) {
            if (prctl(PR_SET_PDEATHSIG, signal) != 0)
                throw nb::value_error(("set_pdeathsig: " + std::to_string(signal) + " is no signal number").c_str());
        },
        nb::arg("signal"));
}
