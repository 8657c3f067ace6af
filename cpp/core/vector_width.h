// ROLLMILL_EACH_VECTOR_WIDTH, for loops that the compiler vectorises as they stand.
#pragma once

#include <cstdint>  // whatever of the C library: it says whether that is glibc

// On x86-64 the compiler is asked for one copy for each generation of vector registers, and the dynamic linker picks
// (ifunc, hence glibc; sanitizers cannot run that early). Levels, not processors: GCC takes "arch=haswell" to mean that
// one and no later one.
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#if !defined(__clang__) && __GNUC__ >= 12
#define ROLLMILL_EACH_VECTOR_WIDTH __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define ROLLMILL_EACH_VECTOR_WIDTH __attribute__((target_clones("avx512f", "avx2", "default")))
#endif
#else
#define ROLLMILL_EACH_VECTOR_WIDTH
#endif
