// What benchmark.py compares with: the design of the authors' kernels of 2021, written from scratch.
// One thread owns one element of the result, every size is a constant, and loops over taps unroll.
// It follows kernels.cu, and the constants N, C, G, H, W, HO, WO, KH, KW, SH, SW, PH, PW, DH, DW.

template <typename T>
__global__ void constants_forward(const T* __restrict__ input, const T* __restrict__ weight,
                                  T* __restrict__ output, const Geometry<int>) {
    const int me = blockIdx.x * blockDim.x + threadIdx.x;
    if (me >= N * C * HO * WO) return;
    const int n = me / WO / HO / C, c = me / WO / HO % C, h = me / WO % HO, w = me % WO;
    const int g = c / (C / G);
    typename SumOf<T>::type sum = 0;
#pragma unroll
    for (int kh = 0; kh < KH; ++kh) {
#pragma unroll
        for (int kw = 0; kw < KW; ++kw) {
            const int y = h * SH - PH + kh * DH, x = w * SW - PW + kw * DW;
            if (y < 0 || y >= H || x < 0 || x >= W) continue;
            sum += decltype(sum)(weight[((((n * G + g) * KH + kh) * KW + kw) * HO + h) * WO + w]) *
                   decltype(sum)(input[((n * C + c) * H + y) * W + x]);
        }
    }
    output[me] = T(sum);
}

template <typename T>
__global__ void constants_grad_input(const T* __restrict__ grad_output,
                                     const T* __restrict__ weight, T* __restrict__ grad_input,
                                     const Geometry<int>) {
    const int me = blockIdx.x * blockDim.x + threadIdx.x;
    if (me >= N * C * H * W) return;
    const int n = me / W / H / C, c = me / W / H % C, y = me / W % H, x = me % W;
    const int g = c / (C / G);
    typename SumOf<T>::type sum = 0;
#pragma unroll
    for (int kh = 0; kh < KH; ++kh) {
#pragma unroll
        for (int kw = 0; kw < KW; ++kw) {
            const int h_times_stride = y + PH - kh * DH, w_times_stride = x + PW - kw * DW;
            if (h_times_stride < 0 || h_times_stride % SH || w_times_stride < 0 ||
                w_times_stride % SW)
                continue;
            const int h = h_times_stride / SH, w = w_times_stride / SW;
            if (h >= HO || w >= WO) continue;
            sum += decltype(sum)(weight[((((n * G + g) * KH + kh) * KW + kw) * HO + h) * WO + w]) *
                   decltype(sum)(grad_output[((n * C + c) * HO + h) * WO + w]);
        }
    }
    grad_input[me] = T(sum);
}

template <typename T>
__global__ void constants_grad_weight(const T* __restrict__ grad_output,
                                      const T* __restrict__ input, T* __restrict__ grad_weight,
                                      const Geometry<int>) {
    const int me = blockIdx.x * blockDim.x + threadIdx.x;
    if (me >= N * G * KH * KW * HO * WO) return;
    const int h = me / WO % HO, w = me % WO;
    const int kh = me / WO / HO / KW % KH, kw = me / WO / HO % KW;
    const int n = me / WO / HO / KW / KH / G, g = me / WO / HO / KW / KH % G;
    const int y = h * SH - PH + kh * DH, x = w * SW - PW + kw * DW;
    typename SumOf<T>::type sum = 0;
    if (y >= 0 && y < H && x >= 0 && x < W) {
#pragma unroll 8
        for (int c = g * (C / G); c < (g + 1) * (C / G); ++c)
            sum += decltype(sum)(grad_output[((n * C + c) * HO + h) * WO + w]) *
                   decltype(sum)(input[((n * C + c) * H + y) * W + x]);
    }
    grad_weight[me] = T(sum);
}
