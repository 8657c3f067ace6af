// Anonymous memory that forked children share.
#pragma once

#include <sys/mman.h>

#include <cstddef>

#include "check.h"

namespace rollmill::testing {

class SharedMemory {
   public:
    explicit SharedMemory(std::size_t size)
        : size_(size), data_(mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
        CHECK(data_ != MAP_FAILED);
    }
    ~SharedMemory() { munmap(data_, size_); }
    SharedMemory(const SharedMemory&) = delete;
    SharedMemory& operator=(const SharedMemory&) = delete;

    void* data() const { return data_; }
    std::size_t size() const { return size_; }

   private:
    std::size_t size_;
    void* data_;
};

}  // namespace rollmill::testing
