// Just enough of a test framework: named test functions that register themselves, and CHECK.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <vector>

namespace rollmill::testing {

struct Test {
    const char* name;
    void (*run)();
};

inline std::vector<Test>& tests() {
    static std::vector<Test> all;
    return all;
}

struct Registration {
    Registration(const char* name, void (*run)()) { tests().push_back({name, run}); }
};

}  // namespace rollmill::testing

#define TEST(name)                                                                \
    static void name();                                                           \
    static const rollmill::testing::Registration name##_registration(#name, name); \
    static void name()

// Ends the test program, also from a thread or a child.
#define CHECK(condition)                                                             \
    do {                                                                             \
        if (!(condition)) {                                                          \
            std::fprintf(stderr, "%s:%d: CHECK(%s)\n", __FILE__, __LINE__, #condition); \
            std::fflush(stderr);                                                     \
            std::_Exit(1);                                                           \
        }                                                                            \
    } while (false)

#define CHECK_THROWS(expression)          \
    do {                                  \
        bool thrown = false;              \
        try {                             \
            (void)(expression);           \
        } catch (const std::exception&) { \
            thrown = true;                \
        }                                 \
        CHECK(thrown);                    \
    } while (false)
