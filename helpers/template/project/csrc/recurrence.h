// What the CPU kernel and the CUDA kernel share: the loop over one row, and all around it.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <type_traits>

using torch::headeronly::ScalarType, torch::stable::Tensor;

// y[t] = decay[t] * y[t - 1] + x[t], or from the end with y[t + 1]; half precision sums in float.
template <class T>
struct Recurrence {
    using Sum = std::conditional_t<std::is_same_v<T, double>, double, float>;
    const T *x, *decay;
    T* y;
    Sum* state;  // of each row: the sum before the first step, then after the last; null: 0
    int64_t steps;
    bool reverse;

    C10_HOST_DEVICE void operator()(int64_t row) const {
        Sum sum = state ? state[row] : 0;
        for (int64_t i = 0; i < steps; ++i) {
            const int64_t t = row * steps + (reverse ? steps - 1 - i : i);
            sum = static_cast<Sum>(decay[t]) * sum + static_cast<Sum>(x[t]);
            y[t] = static_cast<T>(sum);
        }
        if (state) state[row] = sum;
    }
};

// Checks what the loop relies on, makes the result, and calls each_row(recurrence of a row, rows).
template <class EachRow>
Tensor recurrence(Tensor x, Tensor decay, Tensor* state, bool reverse, EachRow each_row) {
    STD_TORCH_CHECK(
        x.dim() > 0 && x.sizes().equals(decay.sizes()) && x.device() == decay.device() &&
            x.scalar_type() == decay.scalar_type(),
        "x and decay must have one shape (..., steps), one dtype and one device");
    STD_TORCH_CHECK(
        !state || (state->sizes().equals(x.sizes().slice(0, x.dim() - 1)) &&
                   state->device() == x.device() && state->is_contiguous()),
        "state must have shape (...) and the device of x, and be contiguous");
    x = torch::stable::contiguous(x), decay = torch::stable::contiguous(decay);
    Tensor y = torch::stable::empty_like(x);
    if (y.numel() == 0) return y;
    const int64_t steps = x.size(-1), rows = x.numel() / steps;

    const auto run = [&](auto zero) {
        using T = decltype(zero);
        using Sum = typename Recurrence<T>::Sum;
        Sum* sums = state ? state->mutable_data_ptr<Sum>() : nullptr;
        each_row(Recurrence<T>{x.const_data_ptr<T>(), decay.const_data_ptr<T>(),
                               y.mutable_data_ptr<T>(), sums, steps, reverse},
                 rows);
    };
    switch (x.scalar_type()) {
        case ScalarType::Double: run(double()); break;
        case ScalarType::Float: run(float()); break;
        case ScalarType::BFloat16: run(torch::headeronly::BFloat16()); break;
        case ScalarType::Half: run(torch::headeronly::Half()); break;
        default: STD_TORCH_CHECK(false, "x must be floating-point");
    }
    return y;
}
