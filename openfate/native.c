/* What the steps of a small table repeat, each in one call: see native.py beside this file.

   N rows, D features, E edges.  A direction of the graph is `ptr` (segments + 1), `index` (E) and
   `value` (E) or NULL.  A function looks at each index before it follows it, and returns 0 where
   one leads out of its table, else 1.
*/
#include <math.h>
#include <stdint.h>

#define VERSION 1 /* of what the functions take: the same in native.py */

/* One file for all processors of a kind: on loading the faster code is chosen where it can run.
   Multiply and add fall together there, as in torch's own sums. */
#if defined(__x86_64__) && defined(__GLIBC__) && __GNUC__ >= 12
#define EXPORT __attribute__((target_clones("arch=x86-64-v3", "default")))
#else
#define EXPORT
#endif
#define INLINE static inline __attribute__((always_inline))

typedef float Eight __attribute__((vector_size(32), aligned(4), may_alias));

typedef struct {
    int64_t n_segments, n_edges, n_table; /* index leads into a table of so many rows */
    const int32_t *ptr, *index;
    const float *value;
} Direction;

int64_t version(void) { return VERSION; }

/* ---- sums over segments ---------------------------------------------------------------------- */

/* X(0), .. X(n - 1), n known to the compiler: what X names stays in registers. */
#define EACH(n, X) \
    if (n > 0) { X(0) } if (n > 1) { X(1) } if (n > 2) { X(2) } if (n > 3) { X(3) } \
    if (n > 4) { X(4) } if (n > 5) { X(5) } if (n > 6) { X(6) } if (n > 7) { X(7) }

/* `sums` of n eights of columns: `part` of them together, and as many more `second` columns on. */
INLINE int sum_eights(const int n, const int part, const int weighted, const Direction *d,
                      const float *table, float *out, int64_t stride, int64_t second,
                      const float *state, const float *scale)
{
    for (int64_t s = 0; s < d->n_segments; s++) {
        const int64_t end = d->ptr[s + 1];
        Eight sum0 = {0}, sum1 = {0}, sum2 = {0}, sum3 = {0};
        Eight sum4 = {0}, sum5 = {0}, sum6 = {0}, sum7 = {0};
        if (d->ptr[s] < 0 || end > d->n_edges) return 0;
#define PLACE(c) (c < part ? c : c - part + second / 8)
#define ADD(c) if (weighted) sum##c += value * row[PLACE(c)]; else sum##c += row[PLACE(c)];
        for (int64_t e = d->ptr[s]; e < end; e++) {
            if (d->index[e] < 0 || d->index[e] >= d->n_table) return 0;
            const float value = weighted ? d->value[e] : 1;
            const Eight *row = (const Eight *)(table + d->index[e] * stride);
            EACH(n, ADD)
        }
        Eight *own = (Eight *)(out + s * stride);
        const Eight *before = (const Eight *)(state + (scale ? s * stride : 0));
        const float by = scale ? scale[s] : 1;
#define PUT(c) \
    if (scale) sum##c = (sum##c + (c < part ? before[c] : own[c - part])) * by; \
    own[PLACE(c)] = sum##c;
        EACH(n, PUT)
    }
    return 1;
}

/* Sums of `table[index]`, times values, over each segment, in the order of torch.embedding_bag.

   Of `width` columns, by eights, and where `second` is not zero of as many that begin there.  With
   `scale` (segments) they are added to a state, which may lie in `out`:

       out[c] = (sum[c] + state[c]) scale,   out[second + c] = (sum[second + c] + out[c]) scale

   Rows of all tables are `stride` apart. */
INLINE int sums(const Direction *d, const float *table, float *out, int64_t stride, int64_t width,
                int64_t second, const float *state, const float *scale)
{
    int fine = 1;
    for (int64_t c = 0; c < width && fine;) {
#define TAKE(n, part) { \
        fine = d->value ? sum_eights(n, part, 1, d, table + c, out + c, stride, second, state + c, scale) \
                        : sum_eights(n, part, 0, d, table + c, out + c, stride, second, state + c, scale); \
        c += 8 * part; }
        const int64_t n = (width - c) / 8;
        if (second && n >= 4) TAKE(8, 4)
        else if (second && n >= 2) TAKE(4, 2)
        else if (second) TAKE(2, 1)
        else if (n >= 4) TAKE(4, 4)
        else if (n >= 2) TAKE(2, 2)
        else TAKE(1, 1)
    }
    return fine;
}

/* See bipartite.segment_sums; `width` is a multiple of eight. */
EXPORT int segment_sums(Direction d, const float *table, float *out, int64_t width)
{
    return sums(&d, table, out, width, width, 0, out, 0);
}

/* ---- DropEdge -------------------------------------------------------------------------------- */

/* `keep_edges` without a branch that nobody foresees: it would be dearer than the work. */
INLINE int keep(const int ordered, const int weighted, const Direction *d, const uint8_t *kept,
                const int64_t *order, int32_t n_kept, int32_t *upto, int32_t *index, float *value)
{
    int32_t n = 0;
    for (int64_t e = 0; e < d->n_edges; e++) {
        const int64_t at = ordered ? order[e] : e;
        if (n > n_kept || (ordered && (uint64_t)at >= (uint64_t)d->n_edges)) return 0;
        upto[e] = n;
        index[n] = d->index[e];
        if (weighted) value[n] = d->value[e];
        n += kept[at] != 0;
    }
    upto[d->n_edges] = n;
    return n == n_kept;
}

/* One direction without the edges whose `kept` (E) is zero, of which n_kept are not; `order` (E)
   are their places in it, or NULL for one after the other.  `upto` (E + 1) is for the function's
   own use; `index` and `value` have room for one entry more than are kept. */
EXPORT int keep_edges(Direction d, const uint8_t *kept, const int64_t *order, int64_t n_kept,
                      int32_t *upto, int32_t *ptr, int32_t *index, float *value)
{
    int fine;
    if (order && d.value) fine = keep(1, 1, &d, kept, order, n_kept, upto, index, value);
    else if (order) fine = keep(1, 0, &d, kept, order, n_kept, upto, index, value);
    else if (d.value) fine = keep(0, 1, &d, kept, order, n_kept, upto, index, value);
    else fine = keep(0, 0, &d, kept, order, n_kept, upto, index, value);
    for (int64_t s = 0; s <= d.n_segments && fine; s++) {
        if (d.ptr[s] < 0 || d.ptr[s] > d.n_edges) return 0;
        ptr[s] = upto[d.ptr[s]];
    }
    return fine;
}

/* ---- the walk of a GCN ----------------------------------------------------------------------- */

/* See _torch_steps in walk.py, of which this is every line.  C columns, a multiple of eight;
   `to_rows` and `to_features` are directions whose segments are rows and features, `feature_ptr`
   and `row_ptr` tell the degrees.

   start (D, width); or, `from_wanted`, a one in column k at feature wanted[k], k = 0 .. width - 1
   room (D + N) (2 C + 1)  for the function's own use: F, G, A and B
   walked (D, width), signal (D, L) or, from wanted features, (width, L), where `constant` */
EXPORT int walk(Direction to_rows, Direction to_features, const int32_t *feature_ptr,
                const int32_t *row_ptr, int64_t n_steps, int64_t C, int64_t width,
                int64_t constant, int64_t from_wanted, const float *start, const int64_t *wanted,
                float *room, float *walked, float *signal)
{
    const int64_t N = to_rows.n_segments, D = to_features.n_segments, stride = 2 * C;
    float *features = room, *rows = features + D * stride, *A = rows + N * stride, *B = A + D;
    int64_t feature_at = C, row_at = 0, n_left = n_steps - 2; /* where the last states begin */
    for (int64_t j = 0; j < D; j++) A[j] = 1 / ((float)(feature_ptr[j + 1] - feature_ptr[j]) + 1);
    for (int64_t i = 0; i < N; i++) B[i] = 1 / ((float)(row_ptr[i + 1] - row_ptr[i]) + 1);
#define SIGNAL(level, at) \
    for (int64_t k = 0; k < (!constant ? 0 : from_wanted ? width : D); k++) { \
        const int64_t j = from_wanted ? wanted[k] : k; \
        signal[(k + 1) * n_steps - 1 - (level)] = \
            features[j * stride + (at) + C - 1] / sqrtf(A[j]); \
    }
    for (int64_t j = 0; j < D; j++) { /* F */
        float *F = features + j * stride, a = sqrtf(A[j]);
        for (int64_t c = 0; c < C; c++) F[c] = !from_wanted && c < width ? start[j * width + c] * a : 0;
        if (constant) F[C - 1] = a;
    }
    for (int64_t k = 0; k < width && from_wanted; k++) {
        if (wanted[k] < 0 || wanted[k] >= D) return 0;
        features[wanted[k] * stride + k] = sqrtf(A[wanted[k]]);
    }
    SIGNAL(0, 0)
    if (n_steps > 1 && !sums(&to_rows, features, rows, stride, C, 0, rows, 0)) return 0;
    for (int64_t i = 0; i < N && n_steps > 1; i++) { /* G1; G in a column that nobody reads later */
        float *G = rows + i * stride, b = sqrtf(B[i]);
        if (constant) G[C - 1] += b;
        for (int64_t c = 0; c < C; c++) G[c] *= B[i];
        if (constant) G[C - 2] = b;
    }
    /* F1 goes where F was, as yet without X^T G, and X^T G1 beside it. */
    for (int64_t j = 0; j < D; j++)
        for (int64_t c = 0; c < C; c++) features[j * stride + c] *= A[j];
    if (n_steps > 1 && !sums(&to_features, rows, features + C, stride, C, 0, rows, 0)) return 0;
    for (int64_t j = 0; j < D && n_steps > 1; j++) { /* F1, F2 */
        float *F1 = features + j * stride, *F2 = F1 + C;
        if (constant) F1[C - 1] += F2[C - 2] * A[j];
        for (int64_t c = 0; c < C; c++) F2[c] = (F2[c] + F1[c]) * A[j];
    }
    if (n_steps == 1) feature_at = 0;
    else SIGNAL(1, 0)
    for (int64_t level = 2; n_left > 0; n_left -= 2) { /* level: of the last states */
        const int64_t second = n_left > 1 ? C : 0;
        if (!sums(&to_rows, features, rows, stride, C, second, rows + row_at, B)) return 0;
        SIGNAL(level, feature_at)
        if (!sums(&to_features, rows, features, stride, C, second, features + feature_at, A)) return 0;
        if (second) SIGNAL(level + 1, 0)
        row_at = feature_at = second;
        level += second ? 2 : 1;
    }
    for (int64_t j = 0; j < D; j++)
        for (int64_t c = 0; c < width; c++)
            walked[j * width + c] = features[j * stride + feature_at + c] / sqrtf(A[j]);
    return 1;
}

/* ---- the layers of a thin network ------------------------------------------------------------ */

#define WIDEST 32 /* a layer; also in native.py */
#define PADDED(n) (((n) + 7) / 8 * 8)

/* out = x M + bias for x (n_rows, n_in), M (n_in, n_out); n_out is a multiple of eight. */
INLINE void multiply(int64_t n_rows, int64_t n_in, int64_t n_out, const float *x, const float *M,
                     const float *bias, float *out)
{
    for (int64_t o = 0; o < n_out; o += 8) {
        const Eight start = bias ? *(const Eight *)(bias + o) : (Eight){0};
        int64_t r = 0;
#define TERM(k) sum##k += x[(r + k) * n_in + i] * m;
#define WRITE(k) *(Eight *)(out + (r + k) * n_out + o) = sum##k;
        for (; r + 8 <= n_rows; r += 8) { /* each read of M serves eight rows */
            Eight sum0 = start, sum1 = start, sum2 = start, sum3 = start;
            Eight sum4 = start, sum5 = start, sum6 = start, sum7 = start;
            for (int64_t i = 0; i < n_in; i++) {
                const Eight m = *(const Eight *)(M + i * n_out + o);
                EACH(8, TERM)
            }
            EACH(8, WRITE)
        }
        for (; r < n_rows; r++) {
            Eight sum0 = start;
            for (int64_t i = 0; i < n_in; i++) {
                const Eight m = *(const Eight *)(M + i * n_out + o);
                TERM(0)
            }
            WRITE(0)
        }
    }
}

/* total (n_in, n_out) += x^T g of rows x (n_in) and g (n_out), and sum (n_out) += those of g; both
   widths are multiples of eight. */
INLINE void add_outer(int64_t n_rows, int64_t n_in, int64_t n_out, const float *x, const float *g,
                      float *total, float *sum)
{
    for (int64_t o = 0; o < n_out; o += 8)
        for (int64_t i = 0; i < n_in; i += 8) {
            Eight sum0 = {0}, sum1 = {0}, sum2 = {0}, sum3 = {0}, sums = {0};
            Eight sum4 = {0}, sum5 = {0}, sum6 = {0}, sum7 = {0};
            for (int64_t r = 0; r < n_rows; r++) {
                const Eight by = *(const Eight *)(g + r * n_out + o);
                const float *row = x + r * n_in + i;
#define OUTER(c) sum##c += row[c] * by;
                EACH(8, OUTER)
                sums += by;
            }
#define TOTAL(c) *(Eight *)(total + (i + c) * n_out + o) += sum##c;
            EACH(8, TOTAL)
            if (i == 0) *(Eight *)(sum + o) += sums;
        }
}

/* The layers of an MLP, ReLU between them.  sizes (L + 1) are at most WIDEST, the first a multiple
   of eight; parameters are weight (o, i) and bias (o) of each layer.  What a layer leaves has its
   size padded to eights.

   z (N, sizes[0])
   kept: what each layer leaves, one after the other
   out (sizes[L], N) */
EXPORT int layers(int64_t N, int64_t L, const int64_t *sizes, const float *const *parameters,
                  const float *z, float *kept, float *out)
{
    float M[WIDEST * WIDEST], bias[WIDEST];
    for (int64_t l = 0; l < L; l++) {
        const int64_t n_in = PADDED(sizes[l]), n_out = PADDED(sizes[l + 1]);
        for (int64_t o = 0; o < n_out; o++) {
            const int there = o < sizes[l + 1];
            bias[o] = there ? parameters[2 * l + 1][o] : 0;
            for (int64_t i = 0; i < n_in; i++)
                M[i * n_out + o] =
                    there && i < sizes[l] ? parameters[2 * l][o * sizes[l] + i] : 0;
        }
        multiply(N, n_in, n_out, z, M, bias, kept);
        for (int64_t c = 0; c < N * n_out && l < L - 1; c++) kept[c] = kept[c] < 0 ? 0 : kept[c];
        z = kept;
        kept += N * n_out;
    }
    for (int64_t o = 0; o < sizes[L]; o++)
        for (int64_t r = 0; r < N; r++) out[o * N + r] = z[r * PADDED(sizes[L]) + o];
    return 1;
}

/* The way back through `layers`: from the gradient at `out` to those at parameters and z.

   room (2, N, widest padded size)  for the function's own use */
EXPORT int layers_back(int64_t N, int64_t L, const int64_t *sizes, const float *const *parameters,
                       const float *z, const float *kept, const float *grad, float *room,
                       float *const *at_parameters, float *at_z)
{
    float M[WIDEST * WIDEST], total[WIDEST * WIDEST], bias[WIDEST];
    int64_t widest = 0;
    for (int64_t l = 1; l <= L; l++) {
        kept += N * PADDED(sizes[l]);
        if (widest < PADDED(sizes[l])) widest = PADDED(sizes[l]);
    }
    float *g = room, *next = room + N * widest;
    for (int64_t r = 0; r < N; r++)
        for (int64_t o = 0; o < PADDED(sizes[L]); o++)
            g[r * PADDED(sizes[L]) + o] = o < sizes[L] ? grad[o * N + r] : 0;
    kept -= N * PADDED(sizes[L]);
    for (int64_t l = L - 1; l >= 0; l--) {
        const int64_t n_in = PADDED(sizes[l]), n_out = PADDED(sizes[l + 1]);
        const float *x = l ? kept -= N * n_in : z;
        for (int64_t c = 0; c < n_in * n_out; c++) total[c] = 0;
        for (int64_t o = 0; o < n_out; o++) bias[o] = 0;
        for (int64_t r = 0; r < N; r += 64) { /* sums of sums keep more digits */
            const int64_t n = N - r < 64 ? N - r : 64;
            add_outer(n, n_in, n_out, x + r * n_in, g + r * n_out, total, bias);
        }
        for (int64_t o = 0; o < n_out; o++)
            for (int64_t i = 0; i < n_in; i++) {
                const int there = o < sizes[l + 1] && i < sizes[l];
                M[o * n_in + i] = there ? parameters[2 * l][o * sizes[l] + i] : 0;
                if (there) at_parameters[2 * l][o * sizes[l] + i] = total[i * n_out + o];
            }
        for (int64_t o = 0; o < sizes[l + 1]; o++) at_parameters[2 * l + 1][o] = bias[o];
        multiply(N, n_out, n_in, g, M, 0, l ? next : at_z);
        for (int64_t c = 0; c < N * n_in && l; c++) next[c] = x[c] <= 0 ? 0 : next[c];
        float *used = g;
        g = next;
        next = used;
    }
    return 1;
}
