// Convolutions: patches written out for the matrix product, and direct sums where channels come in groups.
//
// Between the kernels images are "planes": [channels, samples · pixels], so that one product serves a whole batch.

struct Line {
    int size, kernel, stride, before, dilation, outputs;
};
#define LINES Int height, Int kernel_h, Int stride_h, Int before_h, Int dilation_h, Int rows, Int width,              \
    Int kernel_w, Int stride_w, Int before_w, Int dilation_w, Int columns
#define DOWN                                                                                                          \
    const Line down = {(int)height, (int)kernel_h, (int)stride_h, (int)before_h, (int)dilation_h, (int)rows}
#define ACROSS                                                                                                        \
    const Line across = {(int)width, (int)kernel_w, (int)stride_w, (int)before_w, (int)dilation_w, (int)columns}

// Where weight k of output `place` reads; outside the input if not in 0..size.
__device__ int reads(Line line, int place, int k) { return place * line.stride + k * line.dilation - line.before; }

// The output in which weight k meets input i; −1 if there is none.
__device__ int met(Line line, int i, int k) {
    const int reach = i + line.before - k * line.dilation;
    if (reach < 0 || reach % line.stride) return -1;
    const int place = reach / line.stride;
    return place < line.outputs ? place : -1;
}

// [channels · taps, samples · pixels] from [samples, channels, height, width]; blockIdx.y is a weight.
KERNEL patches(Real *out, const Real *x, Int samples, Int channels, LINES) {
    DOWN;
    ACROSS;
    const int taps = down.kernel * across.kernel, pixels = down.outputs * across.outputs, count = samples * pixels;
    for (int weight = blockIdx.y; weight < channels * taps; weight += gridDim.y) {
        const int channel = weight / taps, i = weight % taps / across.kernel, j = weight % across.kernel;
        for (int at = blockIdx.x * blockDim.x + threadIdx.x; at < count; at += blockDim.x * gridDim.x) {
            const int sample = at / pixels, pixel = at % pixels;
            const int r = reads(down, pixel / across.outputs, i), s = reads(across, pixel % across.outputs, j);
            const bool inside = r >= 0 && r < down.size && s >= 0 && s < across.size;
            out[(Int)weight * count + at] =
                inside ? x[((sample * channels + channel) * down.size + r) * across.size + s] : (Real)0;
        }
    }
}

// The adjoint of `patches`, plus each channel's bias (or null).
KERNEL unpatches(Real *out, const Real *spread, const Real *bias, Int samples, Int channels, LINES) {
    DOWN;
    ACROSS;
    const int plane = down.size * across.size, pixels = down.outputs * across.outputs, count = samples * pixels;
    EACH(at, samples * channels * plane) {
        const int index = (int)at, s = index % across.size, r = index / across.size % down.size;
        const int channel = index / plane % channels, sample = index / plane / channels;
        Real sum = bias ? bias[channel] : (Real)0;
        for (int i = 0; i < down.kernel; i++) {
            const int p = met(down, r, i);
            if (p < 0) continue;
            for (int j = 0; j < across.kernel; j++) {
                const int q = met(across, s, j);
                if (q < 0) continue;
                const int weight = (channel * down.kernel + i) * across.kernel + j;
                sum += spread[(Int)weight * count + sample * pixels + p * across.outputs + q];
            }
        }
        out[index] = sum;
    }
}

// [channels, samples, pixels] from [samples, channels, pixels].
KERNEL to_planes(Real *out, const Real *x, Int samples, Int channels, Int pixels) {
    EACH(at, samples * channels * pixels) {
        const unsigned index = (unsigned)at, pixel = index % (unsigned)pixels, row = index / (unsigned)pixels;
        const unsigned sample = row % (unsigned)samples, channel = row / (unsigned)samples;
        out[index] = x[(sample * channels + channel) * pixels + pixel];
    }
}

// [samples, channels, pixels] from [channels, samples, pixels], plus each channel's bias (or null).
KERNEL from_planes(Real *out, const Real *x, const Real *bias, Int samples, Int channels, Int pixels) {
    EACH(at, samples * channels * pixels) {
        const unsigned index = (unsigned)at, pixel = index % (unsigned)pixels, row = index / (unsigned)pixels;
        const unsigned channel = row % (unsigned)channels, sample = row / (unsigned)channels;
        out[index] = x[(channel * samples + sample) * pixels + pixel] + (bias ? bias[channel] : (Real)0);
    }
}

// `previous` is an earlier sum that this one is added to, or null; then `bias`, or null, is.
#define START(channel, index) (previous ? previous[index] : bias ? bias[channel] : (Real)0)

KERNEL grouped_forward(Real *out, const Real *x, const Real *w, const Real *previous, const Real *bias, Int samples,
                       Int inputs, Int outputs, Int groups, LINES) {
    DOWN;
    ACROSS;
    const int pixels = down.outputs * across.outputs, depth = inputs / groups, each = outputs / groups;
    EACH(at, samples * outputs * pixels) {
        const int index = (int)at, pixel = index % pixels, o = index / pixels % (int)outputs;
        const int sample = index / pixels / (int)outputs, p = pixel / across.outputs, q = pixel % across.outputs;
        Real sum = START(o, index);
        for (int c = 0; c < depth; c++) {
            const Real *plane = x + (Int)(sample * inputs + o / each * depth + c) * down.size * across.size;
            const Real *weights = w + (Int)(o * depth + c) * down.kernel * across.kernel;
            for (int i = 0; i < down.kernel; i++) {
                const int r = reads(down, p, i);
                if (r < 0 || r >= down.size) continue;
                for (int j = 0; j < across.kernel; j++) {
                    const int s = reads(across, q, j);
                    if (s >= 0 && s < across.size) sum += weights[i * across.kernel + j] * plane[r * across.size + s];
                }
            }
        }
        out[index] = sum;
    }
}

KERNEL grouped_inputs(Real *out, const Real *g, const Real *w, const Real *previous, const Real *bias, Int samples,
                      Int inputs, Int outputs, Int groups, LINES) {
    DOWN;
    ACROSS;
    const int plane = down.size * across.size, pixels = down.outputs * across.outputs;
    const int depth = inputs / groups, each = outputs / groups;
    EACH(at, samples * inputs * plane) {
        const int index = (int)at, s = index % across.size, r = index / across.size % down.size;
        const int c = index / plane % (int)inputs, sample = index / plane / (int)inputs;
        Real sum = START(c, index);
        for (int e = 0; e < each; e++) {
            const int o = c / depth * each + e;
            const Real *given = g + (Int)(sample * outputs + o) * pixels;
            const Real *weights = w + (Int)(o * depth + c % depth) * down.kernel * across.kernel;
            for (int i = 0; i < down.kernel; i++) {
                const int p = met(down, r, i);
                if (p < 0) continue;
                for (int j = 0; j < across.kernel; j++) {
                    const int q = met(across, s, j);
                    if (q >= 0) sum += weights[i * across.kernel + j] * given[p * across.outputs + q];
                }
            }
        }
        out[index] = sum;
    }
}

// One block for each weight.
KERNEL grouped_weights(Real *out, const Real *g, const Real *x, Int samples, Int inputs, Int outputs, Int groups,
                       LINES) {
    DOWN;
    ACROSS;
    const int pixels = down.outputs * across.outputs, depth = inputs / groups, each = outputs / groups;
    const int taps = down.kernel * across.kernel, weight = blockIdx.x, tap = weight % taps;
    const int c = weight / taps % depth, o = weight / taps / depth, i = tap / across.kernel, j = tap % across.kernel;
    double sum = 0;
    for (int at = threadIdx.x; at < samples * pixels; at += blockDim.x) {
        const int sample = at / pixels, pixel = at % pixels;
        const int r = reads(down, pixel / across.outputs, i), s = reads(across, pixel % across.outputs, j);
        if (r < 0 || r >= down.size || s < 0 || s >= across.size) continue;
        const Int plane = (Int)(sample * inputs + o / each * depth + c) * down.size * across.size;
        sum += (double)g[(Int)(sample * outputs + o) * pixels + pixel] * (double)x[plane + r * across.size + s];
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) out[weight] = (Real)sum;
}
