// Included before every source of Horovod 0.28.1 and its Gloo: they use these standard headers without naming them.
// Up to GCC 12 other standard headers include them; from GCC 13 on they do not, and the build fails.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

// The flatbuffers that Horovod brings have a span that assigns to a const member, which GCC 14 refuses. They take
// std::span if this macro is defined; before C++20 there is none, and this one has all that they use.
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 14
#define FLATBUFFERS_USE_STD_SPAN
#if __cplusplus < 202002L
namespace std {
inline constexpr size_t dynamic_extent = static_cast<size_t>(-1);

template <typename T, size_t Extent = dynamic_extent>
class span {
 public:
  constexpr span(T* data, size_t size) : data_(data), size_(size) {}
  constexpr T* data() const { return data_; }
  constexpr size_t size() const { return size_; }
  constexpr T& operator[](size_t i) const { return data_[i]; }

 private:
  T* data_;
  size_t size_;
};
}  // namespace std
#endif
#endif
