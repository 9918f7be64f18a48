/* SPDX-License-Identifier: Apache-2.0
 *
 * families.h - struct kernel_family: what the variants of a GPU family have in common, from
 * kernels/families.def.
 *
 * Invariant: the properties of a family are in its entry of families.def and nowhere else.
 */
#ifndef ATTN_CORE_FAMILIES_H
#define ATTN_CORE_FAMILIES_H

#include "attn.h"

enum variant_family {
    FAMILY_CPU_TILE,
    FAMILY_CPU_ROW,
    FAMILY_CPU_BACKWARD,
    FAMILY_CPU_APPEND,
    FAMILY_CPU_MERGE,
#define FAMILY(name, ...) FAMILY_##name,
#include "kernels/families.def"
#undef FAMILY
    FAMILY_COUNT
};

/* Causal problems, beside those without a mask. */
enum causal_support { CAUSAL_OR_NOT, CAUSAL_NEVER, CAUSAL_ALWAYS };

/* Which CTA computes which Q tile. */
enum grid {
    GRID_LINEAR,     /* one CTA for each: work_of_block of kernels/common/work.h */
    GRID_PERSISTENT, /* at most one CTA per SM, which computes one tile after the other */
    GRID_3D          /* one CTA for each, (head, tile, batch) */
};

/* Who issues the TMA loads; TMA_NONE: the kernel has no tensor maps (cp.async). */
enum tma {
    TMA_NONE,
    TMA_CTA, /* one thread loads a KV tile for the CTA */
    TMA_WARP /* each warp loads its own share of a KV tile */
};

/* Where CTAs that share the keys of a Q tile merge their partial results. */
enum split_kv {
    SPLIT_NONE,
    SPLIT_WORKSPACE, /* the last CTA of a tile merges */
    SPLIT_CLUSTER,   /* in a cluster first; the clusters of a tile, if there are several, in the
                        workspace */
    SPLIT_ITEMS,     /* a persistent CTA takes one split after the other; the last warp of each 16
                        rows merges them in the workspace */
    SPLIT_DEVICE     /* likewise, of splits that the kernel chooses (kernels/hopper/mixed.h) */
};

/* How a kernel is launched, and what a problem must satisfy beside the fields of attn_variant. */
struct kernel_family {
    enum causal_support causal;
    enum grid grid;
    bool dynamic; /* dynamic tile scheduler: CTAs take tiles by a counter in the workspace */
    enum tma tma;
    enum split_kv split_kv; /* SPLIT_ITEMS, SPLIT_DEVICE: the map of Q is over (column, head, row,
                               batch) */
    int chunk_keys;  /* SPLIT_WORKSPACE: splits are chunks of so many keys, counted from key 0
                        (portable/invariant.h); SPLIT_DEVICE: of at least so many (hopper/chunks.h);
                        0: they follow from the grid */
    int ctas_per_sm; /* SPLIT_WORKSPACE: splits fill no more; 0: two */
    bool any_pages;  /* with TMA: pages that are no boxes are copied row by row */
    bool pdl;        /* programmatic dependent launch: starts before the kernel before it ends,
                            and waits for that itself */
    bool head_dim_v; /* may differ from head_dim */
    bool packs_gqa;  /* the query heads of a KV head may share a Q tile */
    bool packs_all;  /* packs_gqa: whatever their number */
    int v_in_k;      /* not 0: required (MLA), with head_dim_v up to this */
    attn_direction direction; /* says which struct of kernels/common/args.h is its parameter */
    bool positive_scale;      /* required: the max is taken before the scale is applied */
    int l2_section_mib; /* K and V of the heads that are worked on at one time stay below it */
};

/* Of a GPU family; the CPU's entries are 0. */
extern const struct kernel_family kernel_families[FAMILY_COUNT];

#endif /* ATTN_CORE_FAMILIES_H */
