#!/usr/bin/env bash
# Builds the core's tests with warnings as errors and runs them: plain, under ThreadSanitizer, under ASan and UBSan.
set -euo pipefail
cd "$(dirname "$0")/.."

check() {
    local folder=$1
    shift
    cmake -S . -B "build/$folder" -G Ninja -DROLLMILL_TESTS=ON -DROLLMILL_WERROR=ON "$@" >/dev/null
    cmake --build "build/$folder" | tail -n 1
    ctest --test-dir "build/$folder" --output-on-failure | tail -n 4
}

check cpp-tests
check cpp-tests-thread -DROLLMILL_SANITIZE=thread -DCMAKE_BUILD_TYPE=RelWithDebInfo
check cpp-tests-address -DROLLMILL_SANITIZE=address,undefined -DCMAKE_BUILD_TYPE=RelWithDebInfo
