// The kernels of kernels.cu again, made for one window each: its size, stride and dilation are
// constants, so loops over taps unroll, offsets become part of the load, and no division by the
// stride is left. This text follows kernels.cu, whose types it uses.
//
// forward and grad_input: one thread owns PIXELS pixels of CHANNELS channels of a group. Weights,
// tests and indices serve all of them, and their sums stay in registers.
// grad_weight: one thread owns one row of taps of PIXELS pixels; each grad_output serves them all.
//
// Arrays may be strided, but an image (an input or a grad_output) has neighbours in memory in one
// of two ways:
// PACK = 1: the pixels of a row. Threads are numbered along the pixels of a plane, then plane by
//     plane: a warp reads neighbouring addresses, and wastes no lane on a small map.
// PACK > 1: the channels of a pixel (channels_last), of which one load brings PACK. forward and
//     grad_input then have CHANNELS = PACK, and number threads along the channels first.
// Indices are int; launch.py sees to it that they suffice.
//
// PIXELS > 1: they are neighbours in a row, and a load brings PIXELS columns, each for all the taps
// that need it. launch.py sees to it that PACK is 1, the stride of grad_input too, and that rows of
// all arrays hold a multiple of PIXELS and begin where such a load may: what it brings is inside
// the image as a whole, or outside.

// A kernel is named involution2d_NAME_fast<T, CHANNELS, PIXELS, PAD, PACK, WINDOW ...>; grad_weight
// has no CHANNELS. PAD is padding_width % PIXELS.
#define WINDOW int KH, int KW, int SH, int SW, int DH, int DW

struct Strides {  // of an array, in elements; kh and kw are a weight's. As in launch.py
    int n, c, kh, kw, y, x;
};

template <typename T, int COUNT>
struct alignas(COUNT * sizeof(T)) Pack {
    T at[COUNT];
};

// How the columns that a row of taps needs are loaded: in COUNT loads, STEP columns apart, the
// first of which begins SKIP too early, at a multiple of PIXELS.
template <int PIXELS, int PAD, int KW, int SW, int DW>
struct Loads {
    static constexpr int SKIP = (PIXELS - PAD) % PIXELS;
    static constexpr int STEP = PIXELS > 1 ? PIXELS : DW;
    static constexpr int COUNT = (SKIP + (PIXELS - 1) * SW + (KW - 1) * DW) / STEP + 1;
};

// Which pixels of which channels does this thread own? c, pixel: the first of them.
template <int CHANNELS, int PIXELS, int PACK>
__device__ bool find_my_channels(const Geometry<int>& s, int pixels, int* n, int* c, int* pixel) {
    const int me = blockIdx.x * blockDim.x + threadIdx.x;
    const int parts = s.channels / CHANNELS, places = pixels / PIXELS;
    *pixel = (PACK > 1 ? me / parts : me) % places * PIXELS;
    *c = (PACK > 1 ? me : me / places) % parts * CHANNELS;
    *n = me / places / parts;
    return *n < s.batch;  // the last block has threads to spare
}

// In as few stores as loads bring: the channels of a pixel in one, or the pixels of each channel.
template <int PACK, typename T, typename Sum, int CHANNELS, int PIXELS>
__device__ void write_my_channels(const Sum (&sums)[CHANNELS][PIXELS], T* mine, int apart) {
    if (PACK > 1 && apart == 1) {  // it is not where only what was read lies in channels_last
        Pack<T, PACK> values;
#pragma unroll
        for (int c = 0; c < PACK; ++c) values.at[c] = T(sums[c][0]);
        *(Pack<T, PACK>*)mine = values;
        return;
    }
#pragma unroll
    for (int c = 0; c < CHANNELS; ++c) {
        Pack<T, PIXELS> values;
#pragma unroll
        for (int p = 0; p < PIXELS; ++p) values.at[p] = T(sums[c][p]);
        *(Pack<T, PIXELS>*)(mine + c * apart) = values;
    }
}

template <typename T, int CHANNELS, int PIXELS, int PAD, int PACK, WINDOW>
__global__ void involution2d_forward_fast(const T* __restrict__ input,
                                          const T* __restrict__ weight, T* __restrict__ output,
                                          const Geometry<int> s, const Strides in,
                                          const Strides by, const Strides out) {
    using Sum = typename SumOf<T>::type;
    using Row = Loads<PIXELS, PAD, KW, SW, DW>;
    const int pixels = s.out_height * s.out_width;
    int n, first, pixel;
    if (!find_my_channels<CHANNELS, PIXELS, PACK>(s, pixels, &n, &first, &pixel)) return;

    const int h = pixel / s.out_width, w = pixel % s.out_width;
    const int top = h * SH - s.padding_height, left = w * SW - s.padding_width;
    bool inside[Row::COUNT];
#pragma unroll
    for (int i = 0; i < Row::COUNT; ++i) {
        const int x = left - Row::SKIP + i * Row::STEP;
        inside[i] = x >= 0 && x < s.width;
    }
    const int group = first / (s.channels / s.groups);
    const int step = PACK > 1 ? in.x : 1;
    const T* my_input = input + (n * in.n + first * in.c + (left - Row::SKIP) * step);
    const int my_weight = n * by.n + group * by.c + h * by.y + w * by.x;

    Sum sums[CHANNELS][PIXELS] = {};
#pragma unroll 1  // one row of taps is code enough
    for (int kh = 0; kh < KH; ++kh) {
        const int y = top + kh * DH;
        if (y < 0 || y >= s.height) continue;
        Sum factors[KW][PIXELS];
        int tap = my_weight + kh * by.kh;
#pragma unroll
        for (int kw = 0; kw < KW; ++kw) {
            const auto values = *(const Pack<T, PIXELS>*)(weight + tap);
#pragma unroll
            for (int p = 0; p < PIXELS; ++p) factors[kw][p] = Sum(values.at[p]);
            tap += by.kw;
        }
        const T* row = my_input + y * in.y;
#pragma unroll
        for (int c = 0; c < CHANNELS; c += PACK) {
            const T* place = row;
#pragma unroll
            for (int i = 0; i < Row::COUNT; ++i, place += Row::STEP * step) {
                if (!inside[i]) continue;
                const auto values = *(const Pack<T, PACK * PIXELS>*)place;
#pragma unroll
                for (int use = 0; use < KW * PIXELS; ++use) {
                    const int kw = use / PIXELS, p = use % PIXELS;
                    const int at = p * SW + kw * DW + Row::SKIP - i * Row::STEP;
                    if (at < 0 || at >= PIXELS) continue;  // another load brings it
#pragma unroll
                    for (int k = 0; k < PACK; ++k)
                        sums[c + k][p] += factors[kw][p] * Sum(values.at[at + k]);
                }
            }
            row += in.c;
        }
    }
    write_my_channels<PACK>(sums, output + (n * out.n + first * out.c + h * out.y + w * out.x), out.c);
}

template <typename T, int CHANNELS, int PIXELS, int PAD, int PACK, WINDOW>
__global__ void involution2d_grad_input_fast(const T* __restrict__ grad_output,
                                             const T* __restrict__ weight,
                                             T* __restrict__ grad_input, const Geometry<int> s,
                                             const Strides in, const Strides by,
                                             const Strides out) {
    using Sum = typename SumOf<T>::type;
    using Row = Loads<PIXELS, PAD, KW, 1, DW>;  // from the right to the left, as the taps lie
    const int pixels = s.height * s.width;
    int n, first, pixel;
    if (!find_my_channels<CHANNELS, PIXELS, PACK>(s, pixels, &n, &first, &pixel)) return;

    const int y = pixel / s.width, x = pixel % s.width;
    const int bottom = y + s.padding_height, right = x + s.padding_width;
    bool inside[Row::COUNT];
    int shift[Row::COUNT];  // of a load, from the column of `right`; a constant if the stride is 1
#pragma unroll
    for (int i = 0; i < Row::COUNT; ++i) {
        const int w_times_stride = right + Row::SKIP - i * Row::STEP;
        shift[i] = SW == 1 ? Row::SKIP - i * Row::STEP : w_times_stride / SW - right / SW;
        inside[i] = w_times_stride >= 0 && w_times_stride % SW == 0 &&
                    w_times_stride / SW < s.out_width;
    }
    const int group = first / (s.channels / s.groups);
    const int step = PACK > 1 ? in.x : 1;
    const int my_grad_output = n * in.n + first * in.c + right / SW * step;
    const int my_weight = n * by.n + group * by.c + right / SW * by.x;

    Sum sums[CHANNELS][PIXELS] = {};
#pragma unroll 1
    for (int kh = 0; kh < KH; ++kh) {
        const int h_times_stride = bottom - kh * DH;
        if (h_times_stride < 0 || h_times_stride % SH != 0) continue;
        const int h = h_times_stride / SH;
        if (h >= s.out_height) continue;
        Sum factors[KW][PIXELS];
        const int tap = my_weight + kh * by.kh + h * by.y;
#pragma unroll
        for (int i = 0; i < Row::COUNT; ++i) {
            if (!inside[i]) continue;
#pragma unroll
            for (int use = 0; use < KW * PIXELS; ++use) {
                const int kw = use / PIXELS, p = use % PIXELS;
                const int at = p - kw * DW - Row::SKIP + i * Row::STEP;
                if (at < 0 || at >= PIXELS) continue;
                factors[kw][p] = Sum(weight[tap + kw * by.kw + (shift[i] + at) * by.x]);
            }
        }
        int row = my_grad_output + h * in.y;
#pragma unroll
        for (int c = 0; c < CHANNELS; c += PACK) {
#pragma unroll
            for (int i = 0; i < Row::COUNT; ++i) {
                if (!inside[i]) continue;
                const T* place = grad_output + (row + shift[i] * step);
                const auto values = *(const Pack<T, PACK * PIXELS>*)place;
#pragma unroll
                for (int use = 0; use < KW * PIXELS; ++use) {
                    const int kw = use / PIXELS, p = use % PIXELS;
                    const int at = p - kw * DW - Row::SKIP + i * Row::STEP;
                    if (at < 0 || at >= PIXELS) continue;
#pragma unroll
                    for (int k = 0; k < PACK; ++k)
                        sums[c + k][p] += factors[kw][p] * Sum(values.at[at + k]);
                }
            }
            row += in.c;
        }
    }
    write_my_channels<PACK>(sums, grad_input + (n * out.n + first * out.c + y * out.y + x * out.x),
                            out.c);
}

template <typename T, int PIXELS, int PAD, int PACK, WINDOW>
__global__ void involution2d_grad_weight_fast(const T* __restrict__ grad_output,
                                              const T* __restrict__ input,
                                              T* __restrict__ grad_weight, const Geometry<int> s,
                                              const Strides by, const Strides in,
                                              const Strides out) {
    using Sum = typename SumOf<T>::type;
    using Row = Loads<PIXELS, PAD, KW, SW, DW>;
    const int places = s.out_height * s.out_width / PIXELS;
    const int me = blockIdx.x * blockDim.x + threadIdx.x;
    const int pixel = me % places * PIXELS, kh = me / places % KH;
    const int group = me / places / KH % s.groups, n = me / places / KH / s.groups;
    if (n >= s.batch) return;

    const int h = pixel / s.out_width, w = pixel % s.out_width;
    const int y = h * SH - s.padding_height + kh * DH, left = w * SW - s.padding_width;
    bool inside[Row::COUNT];
#pragma unroll
    for (int i = 0; i < Row::COUNT; ++i) {
        const int x = left - Row::SKIP + i * Row::STEP;
        inside[i] = x >= 0 && x < s.width;
    }

    Sum sums[KW][PIXELS] = {};
    if (y >= 0 && y < s.height) {
        const int group_channels = s.channels / s.groups, first = group * group_channels;
        const int step = PACK > 1 ? in.x : 1, begin = left - Row::SKIP;
        int my_grad_output = n * by.n + first * by.c + h * by.y + w * by.x;
        const T* row = input + (n * in.n + first * in.c + y * in.y + begin * step);
#pragma unroll (PACK > 1 ? 1 : 4)
        for (int c = 0; c < group_channels; c += PACK) {
            const auto grads = *(const Pack<T, PACK * PIXELS>*)(grad_output + my_grad_output);
            Sum factors[PACK * PIXELS];  // converted once: no compiler moves that out of conditions
#pragma unroll
            for (int i = 0; i < PACK * PIXELS; ++i) factors[i] = Sum(grads.at[i]);
#pragma unroll
            for (int i = 0; i < Row::COUNT; ++i) {
                if (!inside[i]) continue;
                const auto values = *(const Pack<T, PACK * PIXELS>*)(row + i * Row::STEP * step);
#pragma unroll
                for (int use = 0; use < KW * PIXELS; ++use) {
                    const int kw = use / PIXELS, p = use % PIXELS;
                    const int at = p * SW + kw * DW + Row::SKIP - i * Row::STEP;
                    if (at < 0 || at >= PIXELS) continue;
#pragma unroll
                    for (int k = 0; k < PACK; ++k)
                        sums[kw][p] += factors[p + k] * Sum(values.at[at + k]);
                }
            }
            my_grad_output += PACK * by.c;
            row += PACK * in.c;
        }
    }
    T* mine = grad_weight + (n * out.n + group * out.c + kh * out.kh + h * out.y + w * out.x);
#pragma unroll
    for (int kw = 0; kw < KW; ++kw) {
        Pack<T, PIXELS> values;
#pragma unroll
        for (int p = 0; p < PIXELS; ++p) values.at[p] = T(sums[kw][p]);
        *(Pack<T, PIXELS>*)(mine + kw * out.kw) = values;
    }
}
