#include <cstring>

#include "check.h"

// Runs every test; given `word`, those whose name contains it; given `-word`, those whose name does not.
int main(int argc, char** argv) {
    const char* word = argc > 1 ? argv[1] : "";
    const bool with = word[0] != '-';
    if (!with) ++word;
    for (const rollmill::testing::Test& test : rollmill::testing::tests()) {
        if ((std::strstr(test.name, word) != nullptr) != with) continue;
        std::printf("%s\n", test.name);
        std::fflush(stdout);
        test.run();
    }
}
