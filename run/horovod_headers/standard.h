// Included before every source of Horovod 0.28.1 and its Gloo: they use these standard headers without naming them.
// Up to GCC 12 other standard headers include them; from GCC 13 on they do not, and the build fails.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
