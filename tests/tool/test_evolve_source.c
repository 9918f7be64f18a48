/* SPDX-License-Identifier: Apache-2.0
 *
 * test_evolve_source.c - what `attest evolve` accepts in sources from outside, and in their PTX.
 */
#include <stdlib.h>

#include "test.h"
#include "tool/evolve/evolve.h"

/* ---- sources and PTX ------------------------------------------------------------------------- */

TEST(sources) {
    attn_error why = {""};
    CHECK_MSG(source_allowed(".", "#include \"common/device.h\"\n// include <x>\nint a;\n", &why),
              "%s", why.text);
    static const char *const wrong[] = {
        "#include <stdio.h>\n",
        "#include \"/etc/passwd\"\n",
        "#include \"../core/tuned.h\"\n",
        "#  include <a>\n",
        "/* */ #include <a>\n",
        "#/* */include <a>\n",
        "#inc\\\nlude <a>\n",
        "#define H <stdio.h>\n#include H\n",
        "#if __has_include(\"/etc/passwd\")\n#endif\n",
        "%:include <a>\n",
        "?\?=include <a>\n",
        "const char *t = __TIME__;\n",
        "int \x01;\n",
        "int \xc3\xa4;\n",
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        CHECK_MSG(!source_allowed(".", wrong[i], &why), "source %zu was let through: %s", i,
                  wrong[i]);
    }
}

TEST(ptx_of_shipped_variants_is_allowed) {
    attn_variant v = {.size = sizeof v};
    attn_error why = {""};
    int count = 0;
    for (int32_t i = 0; attn_variant_get(NULL, i, &v, NULL) == ATTN_OK; i++) {
        attn_image image = {.size = sizeof image};
        for (int32_t j = 0; strcmp(v.device, "cuda") == 0 &&
                            attn_variant_image(NULL, v.name, j, &image, NULL) == ATTN_OK;
             j++) {
            if (image.kind == ATTN_IMAGE_PTX) {
                CHECK_MSG(ptx_allowed(image.data, v.entry, &why), "%s: %s", v.name, why.text);
                count++;
            }
        }
    }
    if (count == 0) {
        SKIP("no kernels for GPUs were built");
    }
}

TEST(ptx_rules) {
    attn_error why = {""};
    static const char good[] =
        ".version 8.0\n.extern .shared .b8 dynamic[];\n.visible .entry k(\n)\n"
        "{\n.reg .b32 %r<2>;\nmov.u32 %r1, %tid.x; // %clock\nret;\n}\n";
    CHECK_MSG(ptx_allowed(good, "k", &why), "%s", why.text);
    CHECK(!ptx_allowed(good, "kk", &why));
    static const struct {
        const char *ptx, *word;
    } wrong[] = {
        {".visible .entry k(\n)\n{ mov.u32 %r1, %clock; }", "%clock"},
        {".visible .entry k(\n)\n{ mov.u64 %rd1, %clock64; }", "%clock64"},
        {".visible .entry k(\n)\n{ mov.u64 %rd1, %globaltimer; }", "%globaltimer"},
        {".visible .entry k(\n)\n{ mov.u32 %r1, %smid; }", "%smid"},
        {".visible .entry k(\n)\n{ mov.u32 %r1, %pm0; }", "%pm0"},
        {".visible .entry k(\n)\n{ nanosleep.u32 100; }", "nanosleep"},
        {".global .u32 x;\n.visible .entry k(\n)\n{ ret; }", "outlives"},
        {".visible .global .u32 x;\n.visible .entry k(\n)\n{ ret; }", "outlives"},
        {".extern .func f\n;\n.visible .entry k(\n)\n{ ret; }", "outside"},
        {".visible .entry k(\n)\n{ ret; }\n.visible .entry l(\n)\n{ ret; }", "kernel l"},
        {".visible .func k(\n)\n{ ret; }", "0 kernels"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char text[256];
        snprintf(text, sizeof text, ".version 8.0\n%s\n", wrong[i].ptx);
        CHECK_MSG(!ptx_allowed(text, "k", &why), "PTX %zu was let through", i);
        CHECK_CONTAINS(why.text, wrong[i].word);
    }
}

TEST_MAIN()
