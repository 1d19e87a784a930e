// Horovod 0.28.1 includes this path, declares AsGpuStreamValue and expects it in TensorFlow's library. TensorFlow 2.21
// does not export that function, so it is defined here. CUDART_VERSION: only sources that know CUDA's types need it.
#pragma once

#include "xla/stream_executor/stream.h"

#ifdef CUDART_VERSION
namespace stream_executor {
namespace gpu {
inline cudaStream_t AsGpuStreamValue(Stream* stream) {
  return static_cast<cudaStream_t>(stream->platform_specific_handle().stream);
}
}  // namespace gpu
}  // namespace stream_executor
#endif
