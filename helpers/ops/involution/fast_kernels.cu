// The kernels of kernels.cu again, made for one window each: its size, stride and dilation are
// constants, so loops over taps unroll, offsets become part of the load, and no division by the
// stride is left. This text follows kernels.cu, whose types it uses.
//
// forward and grad_input: one thread owns one pixel of CHANNELS channels of a group. Weights, tests
// and indices serve all of them, and their sums stay in registers.
// grad_weight: one thread owns one row of taps of one pixel; each grad_output serves them all.
//
// Arrays may be strided, but an image (an input or a grad_output) has neighbours in memory in one
// of two ways:
// PACK = 1: the pixels of a row. Threads are numbered along the pixels of a plane, then plane by
//     plane: a warp reads neighbouring addresses, and wastes no lane on a small map.
// PACK > 1: the channels of a pixel (channels_last), of which one load brings PACK. forward and
//     grad_input then have CHANNELS = PACK, and number threads along the channels first.
// Indices are int; launch.py sees to it that they suffice.

// A kernel is named involution2d_NAME_fast<T, CHANNELS, PACK, WINDOW ...>; grad_weight has no
// CHANNELS.
#define WINDOW int KH, int KW, int SH, int SW, int DH, int DW

struct Strides {  // of an array, in elements; kh and kw are a weight's. As in launch.py
    int n, c, kh, kw, y, x;
};

template <typename T, int PACK>
struct alignas(PACK * sizeof(T)) Pack {
    T at[PACK];
};

// Which pixel of which channels does this thread own? c: the first of them.
template <int CHANNELS, int PACK>
__device__ bool find_my_channels(const Geometry<int>& s, int pixels, int* n, int* c, int* pixel) {
    const int me = blockIdx.x * blockDim.x + threadIdx.x;
    const int parts = s.channels / CHANNELS;
    *pixel = (PACK > 1 ? me / parts : me) % pixels;
    *c = (PACK > 1 ? me : me / pixels) % parts * CHANNELS;
    *n = me / pixels / parts;
    return *n < s.batch;  // the last block has threads to spare
}

template <typename T, int CHANNELS, int PACK, WINDOW>
__global__ void involution2d_forward_fast(const T* __restrict__ input,
                                          const T* __restrict__ weight, T* __restrict__ output,
                                          const Geometry<int> s, const Strides in,
                                          const Strides by, const Strides out) {
    using Sum = typename SumOf<T>::type;
    const int pixels = s.out_height * s.out_width;
    int n, first, pixel;
    if (!find_my_channels<CHANNELS, PACK>(s, pixels, &n, &first, &pixel)) return;

    const int h = pixel / s.out_width, w = pixel % s.out_width;
    const int top = h * SH - s.padding_height, left = w * SW - s.padding_width;
    bool inside[KW];
#pragma unroll
    for (int kw = 0; kw < KW; ++kw) inside[kw] = left + kw * DW >= 0 && left + kw * DW < s.width;
    const int group = first / (s.channels / s.groups);
    const int step = PACK > 1 ? in.x : 1;
    const T* my_input = input + (n * in.n + first * in.c + left * step);
    const int my_weight = n * by.n + group * by.c + h * by.y + w * by.x;

    Sum sums[CHANNELS] = {};
#pragma unroll 1  // one row of taps is code enough
    for (int kh = 0; kh < KH; ++kh) {
        const int y = top + kh * DH;
        if (y < 0 || y >= s.height) continue;
        Sum factors[KW];
        int tap = my_weight + kh * by.kh;
#pragma unroll
        for (int kw = 0; kw < KW; ++kw) {
            factors[kw] = Sum(weight[tap]);
            tap += by.kw;
        }
        const T* row = my_input + y * in.y;
#pragma unroll
        for (int c = 0; c < CHANNELS; c += PACK) {
            const T* place = row;
#pragma unroll
            for (int kw = 0; kw < KW; ++kw, place += DW * step) {
                if (!inside[kw]) continue;
                const auto values = *(const Pack<T, PACK>*)place;
#pragma unroll
                for (int i = 0; i < PACK; ++i) sums[c + i] += factors[kw] * Sum(values.at[i]);
            }
            row += in.c;
        }
    }
    T* mine = output + (n * out.n + first * out.c + h * out.y + w * out.x);
#pragma unroll
    for (int c = 0; c < CHANNELS; ++c) mine[c * out.c] = T(sums[c]);
}

template <typename T, int CHANNELS, int PACK, WINDOW>
__global__ void involution2d_grad_input_fast(const T* __restrict__ grad_output,
                                             const T* __restrict__ weight,
                                             T* __restrict__ grad_input, const Geometry<int> s,
                                             const Strides in, const Strides by,
                                             const Strides out) {
    using Sum = typename SumOf<T>::type;
    int n, first, pixel;
    if (!find_my_channels<CHANNELS, PACK>(s, s.height * s.width, &n, &first, &pixel)) return;

    const int y = pixel / s.width, x = pixel % s.width;
    const int bottom = y + s.padding_height, right = x + s.padding_width;
    bool inside[KW];
    int shift[KW];  // from the column of `right`, in grad_output; a constant where the stride is 1
#pragma unroll
    for (int kw = 0; kw < KW; ++kw) {
        const int w_times_stride = right - kw * DW;
        shift[kw] = SW == 1 ? -kw * DW : w_times_stride / SW - right / SW;
        inside[kw] = w_times_stride >= 0 && w_times_stride % SW == 0 &&
                     w_times_stride / SW < s.out_width;
    }
    const int group = first / (s.channels / s.groups);
    const int step = PACK > 1 ? in.x : 1;
    const int my_grad_output = n * in.n + first * in.c + right / SW * step;
    const int my_weight = n * by.n + group * by.c + right / SW * by.x;

    Sum sums[CHANNELS] = {};
#pragma unroll 1
    for (int kh = 0; kh < KH; ++kh) {
        const int h_times_stride = bottom - kh * DH;
        if (h_times_stride < 0 || h_times_stride % SH != 0) continue;
        const int h = h_times_stride / SH;
        if (h >= s.out_height) continue;
        Sum factors[KW];
        int tap = my_weight + kh * by.kh + h * by.y;
#pragma unroll
        for (int kw = 0; kw < KW; ++kw) {
            if (inside[kw]) factors[kw] = Sum(weight[tap + shift[kw] * by.x]);
            tap += by.kw;
        }
        int row = my_grad_output + h * in.y;
#pragma unroll
        for (int c = 0; c < CHANNELS; c += PACK) {
#pragma unroll
            for (int kw = 0; kw < KW; ++kw) {
                if (!inside[kw]) continue;
                const auto values = *(const Pack<T, PACK>*)(grad_output + (row + shift[kw] * step));
#pragma unroll
                for (int i = 0; i < PACK; ++i) sums[c + i] += factors[kw] * Sum(values.at[i]);
            }
            row += in.c;
        }
    }
    T* mine = grad_input + (n * out.n + first * out.c + y * out.y + x * out.x);
#pragma unroll
    for (int c = 0; c < CHANNELS; ++c) mine[c * out.c] = T(sums[c]);
}

template <typename T, int PACK, WINDOW>
__global__ void involution2d_grad_weight_fast(const T* __restrict__ grad_output,
                                              const T* __restrict__ input,
                                              T* __restrict__ grad_weight, const Geometry<int> s,
                                              const Strides by, const Strides in,
                                              const Strides out) {
    using Sum = typename SumOf<T>::type;
    const int pixels = s.out_height * s.out_width;
    const int me = blockIdx.x * blockDim.x + threadIdx.x;
    const int pixel = me % pixels, kh = me / pixels % KH;
    const int group = me / pixels / KH % s.groups, n = me / pixels / KH / s.groups;
    if (n >= s.batch) return;

    const int h = pixel / s.out_width, w = pixel % s.out_width;
    const int y = h * SH - s.padding_height + kh * DH, left = w * SW - s.padding_width;
    bool inside[KW];
#pragma unroll
    for (int kw = 0; kw < KW; ++kw) inside[kw] = left + kw * DW >= 0 && left + kw * DW < s.width;

    Sum sums[KW] = {};
    if (y >= 0 && y < s.height) {
        const int group_channels = s.channels / s.groups, first = group * group_channels;
        const int step = PACK > 1 ? in.x : 1;
        int my_grad_output = n * by.n + first * by.c + h * by.y + w * by.x;
        const T* row = input + (n * in.n + first * in.c + y * in.y + left * step);
#pragma unroll (PACK > 1 ? 1 : 4)
        for (int c = 0; c < group_channels; c += PACK) {
            const auto grads = *(const Pack<T, PACK>*)(grad_output + my_grad_output);
            Sum factors[PACK];  // converted once: no compiler moves that out of the conditions
#pragma unroll
            for (int i = 0; i < PACK; ++i) factors[i] = Sum(grads.at[i]);
#pragma unroll
            for (int kw = 0; kw < KW; ++kw) {
                if (!inside[kw]) continue;
                const auto values = *(const Pack<T, PACK>*)(row + kw * DW * step);
#pragma unroll
                for (int i = 0; i < PACK; ++i) sums[kw] += factors[i] * Sum(values.at[i]);
            }
            my_grad_output += PACK * by.c;
            row += PACK * in.c;
        }
    }
    T* mine = grad_weight + (n * out.n + group * out.c + kh * out.kh + h * out.y + w * out.x);
#pragma unroll
    for (int kw = 0; kw < KW; ++kw) mine[kw * out.kw] = T(sums[kw]);
}
