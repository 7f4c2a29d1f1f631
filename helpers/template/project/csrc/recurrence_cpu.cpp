// The kernel for CPU tensors: rows are shared out among PyTorch's threads.
#include "recurrence.h"

#include <algorithm>

Tensor recurrence_cpu(Tensor x, Tensor decay, bool reverse) {
    return recurrence(x, decay, [=](auto* x, auto* decay, auto* y, int64_t rows, int64_t steps) {
        const int64_t rows_a_thread = std::max<int64_t>(1, 32768 / steps);  // at least
        torch::stable::parallel_for(0, rows, rows_a_thread, [=](int64_t begin, int64_t end) {
            for (int64_t i = begin * steps; i < end * steps; i += steps)
                recur(x + i, decay + i, y + i, steps, reverse);
        });
    });
}

// The schema is in operator.py, so that it exists where nothing was compiled, too.
STABLE_TORCH_LIBRARY_IMPL(my_package, CPU, m) { m.impl("recurrence", TORCH_BOX(&recurrence_cpu)); }
