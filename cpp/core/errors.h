// Messages of errors, put together out of parts.
#pragma once

#include <sstream>
#include <string>

namespace rollmill {

template <class... Parts>
std::string message(const Parts&... parts) {
    std::ostringstream text;
    (text << ... << parts);
    return text.str();
}

template <class Error, class... Parts>
[[noreturn]] void raise(const Parts&... parts) {
    throw Error(message(parts...));
}

}  // namespace rollmill
