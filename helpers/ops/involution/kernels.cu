// Involution in three kernels: the output, the gradient of the input, the gradient of the weight.
//
// All three gather: one thread owns one element of the result, reads what it needs, sums it in a
// register and writes once. No two threads write to the same place, so there are no atomics, and
// the same input gives the same bits every time.
//
// Arrays are contiguous: input (N, C, H, W), weight (N, G, Kh, Kw, Ho, Wo), output (N, C, Ho, Wo).
// A "plane" is one H x W or Ho x Wo slice of such an array. Neighbouring threads of a block
// (threadIdx.x) own neighbouring pixels of a plane, so a warp reads neighbouring addresses.
//
// T is float, double, __half or __nv_bfloat16. Index is int, or long long for arrays of more than
// 2^31 elements.

#ifdef __CUDACC__  // without it a C++ compiler reads this, which brings these names of its own
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

// Half precision is for storage. Sums are kept in float, or in double if T is double.
template <typename T> struct SumOf { using type = float; };
template <> struct SumOf<double> { using type = double; };

template <typename Index>
struct Geometry {  // the fields of Geometry in geometry.py, in the same order
    Index batch, channels, groups, height, width, out_height, out_width;
    Index kernel_height, kernel_width, stride_height, stride_width;
    Index padding_height, padding_width, dilation_height, dilation_width;
};

// Which element does this thread own? Blocks count through the tiles of the first planes, then
// through those of the next planes. A block has blockDim.x pixels of blockDim.y planes.
template <typename Index>
__device__ bool find_my_element(Index planes, Index pixels, Index* plane, Index* pixel) {
    const Index tiles = (pixels + blockDim.x - 1) / blockDim.x;
    *plane = blockIdx.x / tiles * blockDim.y + threadIdx.y;
    *pixel = blockIdx.x % tiles * blockDim.x + threadIdx.x;
    return *plane < planes && *pixel < pixels;  // blocks at the edge have threads to spare
}

// output[n, c, h, w] = sum over kh, kw of
//     weight[n, g(c), kh, kw, h, w] * input[n, c, y, x]
// with y = h * stride - padding + kh * dilation, x likewise, and input zero outside its borders.
template <typename T, typename Index>
__global__ void involution2d_forward(const T* __restrict__ input, const T* __restrict__ weight,
                                     T* __restrict__ output, const Geometry<Index> s) {
    using Sum = typename SumOf<T>::type;
    const Index pixels = s.out_height * s.out_width;
    Index plane, pixel;
    if (!find_my_element<Index>(s.batch * s.channels, pixels, &plane, &pixel)) return;

    const Index h = pixel / s.out_width;
    const Index w = pixel % s.out_width;
    const Index group = plane / (s.channels / s.groups);  // n * groups + g(c)
    const T* my_input = input + plane * s.height * s.width;
    const T* my_weight = weight + group * s.kernel_height * s.kernel_width * pixels + pixel;

    Sum sum = 0;
    for (Index kh = 0; kh < s.kernel_height; ++kh) {
        const Index y = h * s.stride_height - s.padding_height + kh * s.dilation_height;
        if (y < 0 || y >= s.height) continue;
        for (Index kw = 0; kw < s.kernel_width; ++kw) {
            const Index x = w * s.stride_width - s.padding_width + kw * s.dilation_width;
            if (x < 0 || x >= s.width) continue;
            sum += Sum(my_weight[(kh * s.kernel_width + kw) * pixels]) *
                   Sum(my_input[y * s.width + x]);
        }
    }
    output[plane * pixels + pixel] = T(sum);
}

// grad_input[n, c, y, x] = sum over kh, kw of
//     weight[n, g(c), kh, kw, h, w] * grad_output[n, c, h, w]
// with the one h that solves y = h * stride - padding + kh * dilation, if there is one; w likewise.
template <typename T, typename Index>
__global__ void involution2d_grad_input(const T* __restrict__ grad_output,
                                        const T* __restrict__ weight, T* __restrict__ grad_input,
                                        const Geometry<Index> s) {
    using Sum = typename SumOf<T>::type;
    const Index in_pixels = s.height * s.width;
    const Index out_pixels = s.out_height * s.out_width;
    Index plane, pixel;
    if (!find_my_element<Index>(s.batch * s.channels, in_pixels, &plane, &pixel)) return;

    const Index y = pixel / s.width;
    const Index x = pixel % s.width;
    const Index group = plane / (s.channels / s.groups);
    const T* my_grad_output = grad_output + plane * out_pixels;
    const T* my_weight = weight + group * s.kernel_height * s.kernel_width * out_pixels;

    Sum sum = 0;
    for (Index kh = 0; kh < s.kernel_height; ++kh) {
        const Index h_times_stride = y + s.padding_height - kh * s.dilation_height;
        if (h_times_stride < 0 || h_times_stride % s.stride_height != 0) continue;
        const Index h = h_times_stride / s.stride_height;
        if (h >= s.out_height) continue;
        for (Index kw = 0; kw < s.kernel_width; ++kw) {
            const Index w_times_stride = x + s.padding_width - kw * s.dilation_width;
            if (w_times_stride < 0 || w_times_stride % s.stride_width != 0) continue;
            const Index w = w_times_stride / s.stride_width;
            if (w >= s.out_width) continue;
            const Index out_pixel = h * s.out_width + w;
            sum += Sum(my_weight[(kh * s.kernel_width + kw) * out_pixels + out_pixel]) *
                   Sum(my_grad_output[out_pixel]);
        }
    }
    grad_input[plane * in_pixels + pixel] = T(sum);
}

// grad_weight[n, g, kh, kw, h, w] = sum over the channels c of group g of
//     grad_output[n, c, h, w] * input[n, c, y, x]
// with y = h * stride - padding + kh * dilation, x likewise; zero if (y, x) is outside the input.
template <typename T, typename Index>
__global__ void involution2d_grad_weight(const T* __restrict__ grad_output,
                                         const T* __restrict__ input, T* __restrict__ grad_weight,
                                         const Geometry<Index> s) {
    using Sum = typename SumOf<T>::type;
    const Index taps = s.kernel_height * s.kernel_width;
    const Index pixels = s.out_height * s.out_width;
    Index plane, pixel;
    if (!find_my_element<Index>(s.batch * s.groups * taps, pixels, &plane, &pixel)) return;

    const Index kh = plane % taps / s.kernel_width;
    const Index kw = plane % s.kernel_width;
    const Index y = pixel / s.out_width * s.stride_height - s.padding_height + kh * s.dilation_height;
    const Index x = pixel % s.out_width * s.stride_width - s.padding_width + kw * s.dilation_width;

    Sum sum = 0;
    if (y >= 0 && y < s.height && x >= 0 && x < s.width) {
        const Index group_channels = s.channels / s.groups;
        const Index first = plane / taps * group_channels;  // n * channels + the group's first
        for (Index c = first; c < first + group_channels; ++c) {
            sum += Sum(grad_output[c * pixels + pixel]) *
                   Sum(input[c * s.height * s.width + y * s.width + x]);
        }
    }
    grad_weight[plane * pixels + pixel] = T(sum);
}
