// The kernels for CUDA tensors, in a library of their own: without CUDA it does not load.
#include "recurrence.h"

#include <cuda_runtime.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/macros.h>

template <class T>
__global__ void one_row_a_thread(Recurrence<T> recurrence, int64_t rows) {
    const int64_t row = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
    if (row < rows) recurrence(row);
}

Tensor run(Tensor x, Tensor decay, Tensor* state, bool reverse) {
    const auto device = x.get_device_index();
    const torch::stable::accelerator::DeviceGuard guard(device);
    void* stream = nullptr;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(device, &stream));
    return recurrence(x, decay, state, reverse, [=](auto recurrence, int64_t rows) {
        const int64_t threads = 128, blocks = (rows + threads - 1) / threads;
        one_row_a_thread<<<blocks, threads, 0, static_cast<cudaStream_t>(stream)>>>(
            recurrence, rows);
        STD_CUDA_KERNEL_LAUNCH_CHECK();
    });
}

Tensor recurrence_cuda(Tensor x, Tensor decay, bool reverse) {
    return run(x, decay, nullptr, reverse);
}

Tensor recurrence_from_cuda(Tensor x, Tensor decay, Tensor state, bool reverse) {
    return run(x, decay, &state, reverse);
}

STABLE_TORCH_LIBRARY_IMPL(my_package, CUDA, m) {
    m.impl("recurrence", TORCH_BOX(&recurrence_cuda));
    m.impl("recurrence_from", TORCH_BOX(&recurrence_from_cuda));
}
