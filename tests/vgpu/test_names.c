/* SPDX-License-Identifier: Apache-2.0
 *
 * test_names.c - names of C++ as findings show them, and buffers that are too small for them.
 */
#include "test.h"
#include "vgpu.h"

TEST(readable_names) {
    static const char *const names[][3] = {
        /* mangled, name, with types where they are known */
        {"plain", "plain", "plain"},
        {"", "", ""},
        {"_Z3sumPKfPf", "sum", "sum(float const*, float*)"},
        {"_ZN6shapes4copyIhEEvPKT_PS1_", "shapes::copy<unsigned char>",
         "shapes::copy<unsigned char>(unsigned char const*, unsigned char*)"},
        {"_Z1kILi128ELin4EfLb1EEvPT1_PKS0_i", "k<128, -4, float, true>",
         "k<128, -4, float, true>(float*, float const*, int)"},
        {"_Z1fI4ModeLS0_1EJfdEEvDpT1_", "f<Mode, (Mode)1, float, double>", NULL},
        {"_ZN12_GLOBAL__N_14copyEv", "(anonymous)::copy", "(anonymous)::copy()"},
        {"_ZN41_INTERNAL_cdd6e210_6_inl_cu_df7dc11a_82139atomicAddEP14__nv_bfloat162S0_",
         "atomicAdd", "atomicAdd(__nv_bfloat162*, __nv_bfloat162)"},
        {"_ZN2ns2OpILi128EfE2goEPfi", "ns::Op<128, float>::go",
         "ns::Op<128, float>::go(float*, int)"},
        {"_ZNSt6vectorIiSaIiEE9push_backEOi", "std::vector<int, std::allocator<int>>::push_back",
         NULL},
        {"_ZN1A1BC1ERKS0_", "A::B::B", "A::B::B(A::B const&)"},
        {"_Z1gILi3EEvRAT__fPFvPiE", "g<3>", "g<3>(float[3]&, void (int*)*)"},
        {"_Z1hN1A1BES0_St4pairIiS0_E", "h", "h(A::B, A::B, std::pair<int, A::B>)"},
        {"_ZL5table", "table", "table"},
        {"_ZZ3sumPKfPfE4part", "part", "part"},
        {"_ZZ3sumPKfPfE4part_0", "part", "part"},
        {"_ZZN6shapes4copyIhEEvPKT_PS1_E4tile", "tile", "tile"},
        {"_ZZ1fvE12E4partE4tail", "E4partE4tail", "E4partE4tail"},
        {"_ZZ3sumPKfPfE", "_ZZ3sumPKfPfE", NULL},
        {"_Z", "_Z", "_Z"},
        {"_Z99short", "_Z99short", "_Z99short"},
        {"_ZN", "_ZN", NULL},
        {"_ZZ", "_ZZ", NULL},
        {"_ZNS_1aE", "_ZNS_1aE", NULL},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char text[128], least[1];
        CHECK_STR(vgpu_readable_name(names[i][0], text, sizeof text), names[i][1]);
        CHECK_STR(vgpu_readable_name(names[i][0], least, sizeof least), "");
        if (names[i][2] != NULL) {
            CHECK_STR(vgpu_readable_signature(names[i][0], text, sizeof text), names[i][2]);
        }
    }
    char few[5];
    CHECK_STR(vgpu_readable_name("_Z9kernelizePf", few, sizeof few), "kern");
}

/* Types that name each other and packs within packs: bounded, and shown as they are. */
TEST(names_of_malice) {
    char name[4000] = "_Z1fI", text[64];
    for (size_t i = strlen(name); i < sizeof name - 1; i++) {
        name[i] = "IPJNS_"[(i - 5) % 6];
    }
    vgpu_readable_signature(name, text, sizeof text);
    CHECK(strncmp(text, name, sizeof text - 1) == 0);
    memset(name, 'P', sizeof name - 1);
    memcpy(name, "_Z1f", 4);
    CHECK_STR(vgpu_readable_signature(name, text, sizeof text), "f");
}

TEST_MAIN()
