/* SPDX-License-Identifier: Apache-2.0
 *
 * test_names.c - names of C++ as findings show them, and buffers that are too small for them.
 */
#include "test.h"
#include "vgpu.h"

TEST(readable_names) {
    static const char *const names[][2] = {
        {"plain", "plain"},
        {"", ""},
        {"_Z3sumPKfPf", "sum"},
        {"_ZN6shapes4copyIhEEvPKT_PS1_", "shapes::copy<...>"},
        {"_ZN12_GLOBAL__N_14copyEv", "(anonymous)::copy"},
        {"_ZL5tableE", "table"},
        {"_ZZ3sumPKfPfE4part", "part"},
        {"_ZZ3sumPKfPfE4part_0", "part"},
        {"_ZZN6shapes4copyIhEEvPKT_PS1_E4tile", "tile"},
        {"_ZZ1fvE12E4partE4tail", "E4partE4tail"},
        {"_ZZ3sumPKfPfE", "_ZZ3sumPKfPfE"},
        {"_Z", "_Z"},
        {"_Z99short", "_Z99short"},
        {"_ZN", "_ZN"},
        {"_ZZ", "_ZZ"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char text[64], least[1];
        CHECK_STR(vgpu_readable_name(names[i][0], text, sizeof text), names[i][1]);
        CHECK_STR(vgpu_readable_name(names[i][0], least, sizeof least), "");
    }
    char few[5];
    CHECK_STR(vgpu_readable_name("_Z9kernelizePf", few, sizeof few), "kern");
}

TEST_MAIN()
