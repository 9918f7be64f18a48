/* SPDX-License-Identifier: Apache-2.0
 *
 * chunks.h - batch_invariant: where the keys of a row are cut, counted from key 0.
 *
 * A chunk is LEAST_CHUNK KV tiles up to the KV tile 2 CHUNKS_OF_OCTAVE LEAST_CHUNK; from there on
 * each octave [2^i, 2^(i+1)) has CHUNKS_OF_OCTAVE chunks, so that short sequences have enough
 * splits to fill a GPU, and long ones not too many partial results to merge. The number of a chunk
 * is a floating-point number: exponent and upper bits of its first KV tile.
 *
 * C and CUDA both compile this file (tests/cuda/test_chunks.c).
 *
 * Invariant: chunks follow from the number of the KV tile alone, and hold every tile once.
 */
#ifndef ATTN_KERNELS_HOPPER_CHUNKS_H
#define ATTN_KERNELS_HOPPER_CHUNKS_H

enum {
    LEAST_CHUNK_BITS = 3,
    LEAST_CHUNK = 1 << LEAST_CHUNK_BITS, /* KV tiles */
    OCTAVE_BITS = 5,
    CHUNKS_OF_OCTAVE = 1 << OCTAVE_BITS /* args.h: ATTN_CHUNKS_OF_OCTAVE */
};

/* The octave of a KV tile; 0: chunks are the shortest. */
INLINE int octave_of_tile(int n) {
    return max(31 - LEAST_CHUNK_BITS - OCTAVE_BITS - __clz(n), 0);
}

INLINE int chunk_of_tile(int n) {
    const int octave = octave_of_tile(n);
    return (n >> (LEAST_CHUNK_BITS + octave)) + octave * CHUNKS_OF_OCTAVE;
}

/* The first KV tile of the chunk of tile n. */
INLINE int chunk_begin_of_tile(int n) {
    return n & -(LEAST_CHUNK << octave_of_tile(n));
}

INLINE int chunk_begin(int chunk) {
    const int octave = max(chunk / CHUNKS_OF_OCTAVE - 1, 0);
    return (chunk - octave * CHUNKS_OF_OCTAVE) << (LEAST_CHUNK_BITS + octave);
}

/* Chunks that a row with so many KV tiles has, of which a Q tile sees at most `seen` in a row. */
INLINE int chunks_of_tiles(int tiles, int seen) {
    const int all = chunk_of_tile(max(tiles - 1, 0)) + 1;
    return min(all, seen / LEAST_CHUNK + 2);
}

#endif /* ATTN_KERNELS_HOPPER_CHUNKS_H */
