// The kernels for CPU tensors: PyTorch's threads share the rows.
#include "recurrence.h"

#include <algorithm>

const auto each_row = [](auto recurrence, int64_t rows) {
    const int64_t rows_a_thread = std::max<int64_t>(1, 32768 / recurrence.steps);  // at least
    torch::stable::parallel_for(0, rows, rows_a_thread, [=](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) recurrence(row);
    });
};

Tensor recurrence_cpu(Tensor x, Tensor decay, bool reverse) {
    return recurrence(x, decay, nullptr, reverse, each_row);
}

Tensor recurrence_from_cpu(Tensor x, Tensor decay, Tensor state, bool reverse) {
    return recurrence(x, decay, &state, reverse, each_row);
}

// The schemas are in operator.py, so that they exist even where nothing was compiled.
STABLE_TORCH_LIBRARY_IMPL(my_package, CPU, m) {
    m.impl("recurrence", TORCH_BOX(&recurrence_cpu));
    m.impl("recurrence_from", TORCH_BOX(&recurrence_from_cpu));
}
