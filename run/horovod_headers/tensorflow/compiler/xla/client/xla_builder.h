// Horovod 0.28.1 includes this path. Since TensorFlow 2.19 the header is xla/hlo/builder/xla_builder.h, and XLA uses
// absl::StatusOr where Horovod writes xla::StatusOr.
#pragma once

#include "xla/hlo/builder/xla_builder.h"

namespace xla {
template <typename T>
using StatusOr = absl::StatusOr<T>;
}  // namespace xla
