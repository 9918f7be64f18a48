/* SPDX-License-Identifier: Apache-2.0
 *
 * test_budgets.c - proves that the gate of `attest inspect` finds each thing that it is there for,
 * that budgets.def names each cubin once, that a tile's shape demands its matrix instructions, and
 * that the log of another cubin is refused.
 */
#include "test.h"
#include "tool/stages/inspect/inspect.h"

static char failures[INSPECT_FAILURES_MAX][256];

static struct inspected clean_row(bool tensor_cores) {
    return (struct inspected){.name = "v",
                              .family = "f",
                              .arch = "sm_80",
                              .tensor_cores = tensor_cores,
                              .entry.registers = 96,
                              .sass.tensor = tensor_cores ? 32 : 0};
}

/* Exactly this one rule is broken. */
static void breaks(const struct inspected *row, const struct budget *budget, const char *sentence) {
    const int count = inspect_gate(row, budget, failures);
    if (CHECK_EQ(count, 1)) {
        CHECK_STR(failures[0], sentence);
    }
}

TEST(each_rule) {
    const struct budget scalar = {"v", "sm_80", 96, 0}, tensor = {"v", "sm_80", 96, 32};
    struct inspected row = clean_row(false);
    CHECK_EQ(inspect_gate(&row, &scalar, failures), 0);
    row = clean_row(true);
    CHECK_EQ(inspect_gate(&row, &tensor, failures), 0);
    breaks(&row, NULL, "it has no budget");
    row.entry.registers = 97;
    breaks(&row, &tensor, "registers 97, budget 96");
    row = clean_row(true);
    row.entry.stack_bytes = 8;
    breaks(&row, &tensor, "stack_bytes 8, budget 0");
    row = clean_row(true);
    row.spill_bytes = 4;
    breaks(&row, &tensor, "spill_bytes 4, budget 0");
    row.spill_bytes = INSPECT_UNKNOWN;
    breaks(&row, &tensor, "spill_bytes unknown, budget 0");
    row = clean_row(true);
    row.sass.local = 1;
    breaks(&row, &tensor, "local_ops 1, budget 0");
    row = clean_row(true);
    row.entry.helpers = 1;
    breaks(&row, &tensor, "helpers 1, budget 0");
    row = clean_row(true);
    row.sass.tensor = 31;
    breaks(&row, &tensor, "tensor_ops 31, budget at least 32");
    row.sass.tensor = 0;
    breaks(&row, &scalar, "tensor_ops 0, budget at least 1");
    row = clean_row(false);
    row.sass.tensor = 1;
    breaks(&row, &tensor, "tensor_ops 1, budget 0");
    row = clean_row(false);
    snprintf(row.log_fault.text, sizeof row.log_fault.text, "no log");
    breaks(&row, &scalar, "no log");
}

TEST(all_rules_at_once_fit) {
    struct inspected row = clean_row(true);
    row.entry.stack_bytes = row.entry.helpers = 1;
    row.spill_bytes = INSPECT_UNKNOWN;
    row.sass.local = 1;
    row.sass.tensor = 0;
    memset(row.log_fault.text, 'x', sizeof row.log_fault.text - 1);
    CHECK_EQ(inspect_gate(&row, NULL, failures), 7);
}

/* ---- a real cubin, with logs of our own ------------------------------------------------------ */

static unsigned char image_bytes[1 << 14];

static struct inspected inspect(const char *hash, const char *figures) {
    char log[1024];
    FILE *in = fopen("tests/data/fuzz_cubin/sm_80.cubin", "rb");
    const size_t bytes = in != NULL ? fread(image_bytes, 1, sizeof image_bytes, in) : 0;
    if (in != NULL) {
        fclose(in);
    }
    char ours[SHA256_TEXT];
    sha256_text(image_bytes, bytes, ours);
    snprintf(log, sizeof log,
             "sha256 %s\nptxas info    : Compiling entry function 'alpha' for 'sm_80'\n"
             "ptxas info    : Function properties for alpha\n%s",
             hash != NULL ? hash : ours, figures);
    const attn_variant variant = {.size = sizeof variant,
                                  .name = "v",
                                  .family = "f",
                                  .dtypes = 1u << ATTN_BF16 | 1u << ATTN_FP16,
                                  .head_dim_max = 64,
                                  .shared_bytes = 7,
                                  .entry = "alpha"};
    const attn_image image = {.size = sizeof image,
                              .kind = ATTN_IMAGE_CUBIN,
                              .arch = "sm_80",
                              .data = image_bytes,
                              .bytes = bytes,
                              .log = log};
    struct inspected row;
    attn_error why = {""};
    CHECK_MSG(inspect_variant(&variant, &image, &row, &why), "%s", why.text);
    return row;
}

static const char SAID[] = "    64 bytes stack frame, 40 bytes spill stores, 2 bytes spill loads\n"
                           "ptxas info    : Used 22 registers, used 3 barriers, 512 bytes smem\n";

TEST(bound_log) {
    const struct inspected row = inspect(NULL, SAID);
    CHECK(row.log_bound);
    CHECK_STR(row.log_fault.text, "");
    CHECK_EQ(row.spill_bytes, 42);
    CHECK_STR(row.dtype, "fp16,bf16");
    CHECK_EQ(row.smem_dynamic, 7);
    CHECK_EQ(row.tensor_demand, 0); /* the variant uses no tensor cores */
    CHECK_EQ(row.sass.tensor, 3);
    CHECK_EQ(row.sass.local, 3);
}

TEST(log_of_another_cubin) {
    const struct inspected row =
        inspect("0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", SAID);
    CHECK(!row.log_bound);
    CHECK_EQ(row.spill_bytes, INSPECT_UNKNOWN);
    CHECK_CONTAINS(row.log_fault.text, "the ptxas log is of another cubin");
}

TEST(log_that_disagrees) {
    const struct inspected row =
        inspect(NULL, "    64 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
                      "ptxas info    : Used 23 registers, used 3 barriers, 512 bytes smem\n");
    CHECK_EQ(row.spill_bytes, INSPECT_UNKNOWN);
    CHECK_CONTAINS(row.log_fault.text, "registers: the ptxas log says 23, the cubin 22");
}

/* What budgets.def said of these tiles when it had a number for each, and ptxas kept. */
TEST(demand_of_a_tile) {
    static const struct {
        attn_variant variant;
        int64_t demand;
    } TILES[] = {
        {{.family = "fwd_mma", .head_dim_max = 128, .block_q = 128, .block_kv = 64, .warps = 4},
         256},
        {{.family = "fwd_wmma", .head_dim_max = 64, .block_q = 48, .block_kv = 64, .warps = 8}, 24},
        {{.family = "fwd_hopper", .head_dim_max = 96, .block_q = 128, .block_kv = 128, .warps = 12},
         14},
        {{.family = "fwd_tf32",
          .dtypes = 1U << ATTN_FP32,
          .head_dim_max = 256,
          .block_q = 32,
          .block_kv = 16,
          .warps = 2},
         216},
        {{.family = "bwd_mma",
          .head_dim_max = 64,
          .block_q = 64,
          .block_kv = 32,
          .warps = 4,
          .direction = ATTN_BACKWARD},
         112},
    };
    for (size_t i = 0; i < sizeof TILES / sizeof *TILES; i++) {
        attn_variant variant = TILES[i].variant;
        variant.tensor_cores = true;
        CHECK_EQ(inspect_demand(&variant), TILES[i].demand);
    }
}

/* ---- printing and asserting ------------------------------------------------------------------ */

TEST(output_of_ptx) {
    CHECK(inspect_output_call(".visible .entry fwd(.param .u64 p) { ret; }") == NULL);
    CHECK(inspect_output_call(".visible .entry vprintf_free() { ret; }") == NULL);
    CHECK(inspect_output_call(".visible .entry my_vprintf() { ret; }") == NULL);
    CHECK_STR(inspect_output_call("vprintf"), "vprintf");
    CHECK_STR(inspect_output_call("my_vprintf ... call.uni (r),\n\tvprintf,\n"), "vprintf");
    CHECK_STR(inspect_output_call(".extern .func __assertfail\n("), "__assertfail");
    CHECK_STR(inspect_output_call("call __assert_fail, (a);"), "__assert_fail");
}

/* A cubin that prints: the figures are those of any other, and the gate says what is wrong. */
TEST(output_of_cubin) {
    static unsigned char bytes[1 << 14];
    FILE *in = fopen("tests/data/fuzz_cubin/prints.cubin", "rb");
    if (!CHECK(in != NULL)) {
        return;
    }
    const attn_image image = {.size = sizeof image,
                              .kind = ATTN_IMAGE_CUBIN,
                              .arch = "sm_80",
                              .data = bytes,
                              .bytes = fread(bytes, 1, sizeof bytes, in)};
    fclose(in);
    const attn_variant variant = {
        .size = sizeof variant, .name = "v", .family = "f", .entry = "gamma"};
    struct inspected row;
    attn_error why = {""};
    if (!CHECK_MSG(inspect_variant(&variant, &image, &row, &why), "%s", why.text)) {
        return;
    }
    CHECK_STR(row.output_call, "vprintf");
    row.ptx_output_call = "__assertfail";
    const int count = inspect_gate(&row, NULL, failures);
    if (CHECK(count >= 2)) {
        CHECK_CONTAINS(failures[count - 2], "its machine code refers to vprintf");
        CHECK_CONTAINS(failures[count - 1], "the variant's PTX refers to __assertfail");
    }
}

/* ---- budgets.def ----------------------------------------------------------------------------- */

TEST(each_variant_has_one_line) {
    struct budget line, found;
    int count = 0;
    for (int i = 0; budget_next(&i, &line); count++) {
        int same = 0;
        for (int k = 0; budget_next(&k, &found);) {
            same += strcmp(found.variant, line.variant) == 0 && strcmp(found.arch, line.arch) == 0;
        }
        CHECK_MSG(same == 1, "%s %s: %d lines", line.variant, line.arch, same);
        CHECK_MSG(line.registers >= 1 && line.registers <= 255 && line.tensor_ops >= 0,
                  "%s %s: %d registers, %d tensor_ops", line.variant, line.arch,
                  (int)line.registers, (int)line.tensor_ops);
    }
    CHECK(count > 100);
    CHECK(budget_find("fwd_scalar_bf16_d64_32x64_w4_s2", "sm_90", &found));
    CHECK(!budget_find("fwd_scalar_bf16_d64_32x64_w4_s2", "sm_70", &found));
}

TEST_MAIN()
