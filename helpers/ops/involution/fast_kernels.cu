// The kernels of kernels.cu again, made for one window each: its size, stride and dilation are
// constants, so loops over taps unroll, offsets become part of the load, and no division by the
// stride is left. This text follows kernels.cu, whose types and layout it uses.
//
// forward and grad_input: one thread owns one pixel of CHANNELS channels of a group. Weights, tests
// and indices serve all of them, and their sums stay in registers.
// grad_weight: one thread owns one row of taps of one pixel; each grad_output serves them all.
//
// Threads are numbered along the pixels of a plane, then plane by plane: a warp reads neighbouring
// addresses, and wastes no lane on a small map. Indices are int; launch.py sees to it that they
// suffice.

// A kernel is named involution2d_NAME_fast<T, CHANNELS, WINDOW ...>; grad_weight has no CHANNELS.
#define WINDOW int KH, int KW, int SH, int SW, int DH, int DW

template <typename T, int CHANNELS, WINDOW>
__global__ void involution2d_forward_fast(const T* __restrict__ input,
                                          const T* __restrict__ weight, T* __restrict__ output,
                                          const Geometry<int> s) {
    using Sum = typename SumOf<T>::type;
    const int in_pixels = s.height * s.width;
    const int pixels = s.out_height * s.out_width;
    const int me = blockIdx.x * blockDim.x + threadIdx.x;
    const int plane = me / pixels * CHANNELS;  // the first of mine
    const int pixel = me % pixels;
    if (plane >= s.batch * s.channels) return;  // the last block has threads to spare

    const int top = pixel / s.out_width * SH - s.padding_height;
    const int left = pixel % s.out_width * SW - s.padding_width;
    bool inside[KW];
#pragma unroll
    for (int kw = 0; kw < KW; ++kw) inside[kw] = left + kw * DW >= 0 && left + kw * DW < s.width;
    const int group = plane / (s.channels / s.groups);  // n * groups + g(c)
    const T* my_input = input + (plane * in_pixels + left);
    const T* my_weight = weight + (group * KH * KW * pixels + pixel);

    Sum sums[CHANNELS] = {};
#pragma unroll 1  // one row of taps is code enough
    for (int kh = 0; kh < KH; ++kh) {
        const int y = top + kh * DH;
        if (y < 0 || y >= s.height) continue;
        Sum factors[KW];
        const T* tap = my_weight + kh * KW * pixels;
#pragma unroll
        for (int kw = 0; kw < KW; ++kw) {
            factors[kw] = Sum(*tap);
            tap += pixels;
        }
        const T* row = my_input + y * s.width;
#pragma unroll
        for (int c = 0; c < CHANNELS; ++c) {
#pragma unroll
            for (int kw = 0; kw < KW; ++kw)
                if (inside[kw]) sums[c] += factors[kw] * Sum(row[kw * DW]);
            row += in_pixels;
        }
    }
#pragma unroll
    for (int c = 0; c < CHANNELS; ++c) output[(plane + c) * pixels + pixel] = T(sums[c]);
}

template <typename T, int CHANNELS, WINDOW>
__global__ void involution2d_grad_input_fast(const T* __restrict__ grad_output,
                                             const T* __restrict__ weight,
                                             T* __restrict__ grad_input, const Geometry<int> s) {
    using Sum = typename SumOf<T>::type;
    const int in_pixels = s.height * s.width;
    const int out_pixels = s.out_height * s.out_width;
    const int me = blockIdx.x * blockDim.x + threadIdx.x;
    const int plane = me / in_pixels * CHANNELS;
    const int pixel = me % in_pixels;
    if (plane >= s.batch * s.channels) return;

    const int bottom = pixel / s.width + s.padding_height;
    const int right = pixel % s.width + s.padding_width;
    bool inside[KW];
    int step[KW];  // from the column of `right`, in grad_output; a constant where the stride is 1
#pragma unroll
    for (int kw = 0; kw < KW; ++kw) {
        const int w_times_stride = right - kw * DW;
        step[kw] = SW == 1 ? -kw * DW : w_times_stride / SW - right / SW;
        inside[kw] = w_times_stride >= 0 && w_times_stride % SW == 0 &&
                     w_times_stride / SW < s.out_width;
    }
    const int group = plane / (s.channels / s.groups);
    const T* my_grad_output = grad_output + (plane * out_pixels + right / SW);
    const T* my_weight = weight + (group * KH * KW * out_pixels + right / SW);

    Sum sums[CHANNELS] = {};
#pragma unroll 1
    for (int kh = 0; kh < KH; ++kh) {
        const int h_times_stride = bottom - kh * DH;
        if (h_times_stride < 0 || h_times_stride % SH != 0) continue;
        const int h = h_times_stride / SH;
        if (h >= s.out_height) continue;
        Sum factors[KW];
        const T* tap = my_weight + (kh * KW * out_pixels + h * s.out_width);
#pragma unroll
        for (int kw = 0; kw < KW; ++kw) {
            factors[kw] = inside[kw] ? Sum(tap[step[kw]]) : Sum(0);
            tap += out_pixels;
        }
        const T* row = my_grad_output + h * s.out_width;
#pragma unroll
        for (int c = 0; c < CHANNELS; ++c) {
#pragma unroll
            for (int kw = 0; kw < KW; ++kw)
                if (inside[kw]) sums[c] += factors[kw] * Sum(row[step[kw]]);
            row += out_pixels;
        }
    }
#pragma unroll
    for (int c = 0; c < CHANNELS; ++c) grad_input[(plane + c) * in_pixels + pixel] = T(sums[c]);
}

template <typename T, WINDOW>
__global__ void involution2d_grad_weight_fast(const T* __restrict__ grad_output,
                                              const T* __restrict__ input,
                                              T* __restrict__ grad_weight,
                                              const Geometry<int> s) {
    using Sum = typename SumOf<T>::type;
    const int in_pixels = s.height * s.width;
    const int pixels = s.out_height * s.out_width;
    const int me = blockIdx.x * blockDim.x + threadIdx.x;
    const int taps = me / pixels;  // a row of them: (n * groups + g) * KH + kh
    const int pixel = me % pixels;
    if (taps >= s.batch * s.groups * KH) return;

    const int group_channels = s.channels / s.groups;
    const int first = taps / KH * group_channels;  // n * channels + the group's first
    const int y = pixel / s.out_width * SH - s.padding_height + taps % KH * DH;
    const int left = pixel % s.out_width * SW - s.padding_width;
    bool inside[KW];
#pragma unroll
    for (int kw = 0; kw < KW; ++kw) inside[kw] = left + kw * DW >= 0 && left + kw * DW < s.width;

    Sum sums[KW] = {};
    if (y >= 0 && y < s.height) {
        const T* my_grad_output = grad_output + (first * pixels + pixel);
        const T* row = input + (first * in_pixels + y * s.width + left);
#pragma unroll 4
        for (int c = 0; c < group_channels; ++c) {
            const Sum factor = Sum(*my_grad_output);
#pragma unroll
            for (int kw = 0; kw < KW; ++kw)
                if (inside[kw]) sums[kw] += factor * Sum(row[kw * DW]);
            my_grad_output += pixels;
            row += in_pixels;
        }
    }
#pragma unroll
    for (int kw = 0; kw < KW; ++kw) grad_weight[(taps * KW + kw) * pixels + pixel] = T(sums[kw]);
}
