/* SPDX-License-Identifier: Apache-2.0
 *
 * detect.c - which instruction sets are compiled in, and which of them this CPU has.
 *
 * Invariant: no function of an instruction-set file runs unless cpu_find_isa returned its table.
 */
#include "cpu/cpu.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#if defined(__aarch64__)
#include <sys/auxv.h>
#elif defined(__x86_64__)
#include <cpuid.h>
#include <errno.h>
#include <pthread.h>
#include <sys/syscall.h>
#endif

typedef bool cpu_test(void);

static bool always(void) {
    return true;
}

extern const struct cpu_isa cpu_isa_c;

#if defined(__aarch64__) && !defined(ATTN_PORTABLE_ONLY)
extern const struct cpu_isa cpu_isa_neon;
extern const struct cpu_isa cpu_isa_neon_bf16;

enum { HWCAP2_BF16_BIT = 14 }; /* of AT_HWCAP2, as Linux defines it */

static bool has_bf16(void) {
    return (getauxval(AT_HWCAP2) >> HWCAP2_BF16_BIT & 1) != 0;
}
#endif

#if defined(__x86_64__) && !defined(ATTN_PORTABLE_ONLY)
extern const struct cpu_isa cpu_isa_avx2;
extern const struct cpu_isa cpu_isa_avx512;
extern const struct cpu_isa cpu_isa_avx512_bf16;
extern const struct cpu_isa cpu_isa_amx;
extern const struct cpu_isa cpu_isa_amx_bf16x2;
extern const struct cpu_isa cpu_isa_amx_bf16x3;

#define BIT(n) (1U << (n))

/* CPUID queries, bits as Intel's and AMD's manuals number them. */
enum {
    LEAF_1_ECX = 0, /* FMA 12, OSXSAVE 27, AVX 28, F16C 29 */
    LEAF_7_EBX,     /* AVX2 5, AVX512 F 16, DQ 17, BW 30, VL 31 */
    LEAF_7_EDX,     /* AMX-BF16 22, AMX-TILE 24 */
    LEAF_7_1_EAX,   /* AVX512_BF16 5 */
    XCR0,           /* what the system saves: XMM 1, YMM 2, masks and ZMM 5 to 7, AMX 17 and 18 */
    FEATURE_WORDS
};

/* Queried once: under a hypervisor each CPUID traps. */
static unsigned features[FEATURE_WORDS];
static pthread_once_t features_read = PTHREAD_ONCE_INIT;

static void read_features(void) {
    unsigned a;
    unsigned b;
    unsigned c;
    unsigned d;
    if (!__get_cpuid(1, &a, &b, &c, &d)) {
        return;
    }
    features[LEAF_1_ECX] = c;
    if (c & BIT(27)) {
        __asm__("xgetbv" : "=a"(features[XCR0]), "=d"(d) : "c"(0));
    }
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
        features[LEAF_7_EBX] = b;
        features[LEAF_7_EDX] = d;
        if (a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) { /* a: the last subleaf */
            features[LEAF_7_1_EAX] = a;
        }
    }
}

static bool has(int word, unsigned bits) {
    pthread_once(&features_read, read_features);
    return (features[word] & bits) == bits;
}

static bool has_avx2(void) {
    return has(LEAF_1_ECX, BIT(12) | BIT(28) | BIT(29)) && has(LEAF_7_EBX, BIT(5)) &&
           has(XCR0, BIT(1) | BIT(2));
}

static bool has_avx512(void) {
    return has_avx2() && has(LEAF_7_EBX, BIT(16) | BIT(17) | BIT(30) | BIT(31)) &&
           has(XCR0, BIT(5) | BIT(6) | BIT(7));
}

static bool has_avx512_bf16(void) {
    return has_avx512() && has(LEAF_7_1_EAX, BIT(5));
}

#define AMX "AMX-BF16 (TDPBF16PS)"

static bool has_amx(void) {
    return has_avx512_bf16() && has(LEAF_7_EDX, BIT(22) | BIT(24)) && has(XCR0, BIT(17) | BIT(18));
}

enum { REQUEST_PERMISSION = 0x1023, AMX_DATA = 18 }; /* ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA */

/* The kernel lets a process use AMX after a request; a repeated one costs a system call. */
static attn_status request_amx(attn_error *error) {
    if (syscall(SYS_arch_prctl, REQUEST_PERMISSION, AMX_DATA) == 0) {
        return ATTN_OK;
    }
    return attn_fail(
        error, ATTN_UNSUPPORTED, "the system does not permit AMX-BF16: errno %d%s", errno,
        errno == ENOSPC ? ", an alternate signal stack (sigaltstack) is too small" : "");
}
#endif

static const struct {
    const char *name;
    const struct cpu_isa *isa;
    cpu_test *present;
    const char *needs;
    attn_status (*request)(attn_error *error); /* NULL: the system need not be asked */
} isas[] = {
    {"c", &cpu_isa_c, always, "", NULL},
#if defined(__aarch64__) && !defined(ATTN_PORTABLE_ONLY)
    {"neon", &cpu_isa_neon, always, "", NULL},
    {"neon_bf16", &cpu_isa_neon_bf16, has_bf16, "the BF16 instructions (BFMMLA)", NULL},
#endif
#if defined(__x86_64__) && !defined(ATTN_PORTABLE_ONLY)
    {"avx2", &cpu_isa_avx2, has_avx2, "AVX2, FMA or F16C", NULL},
    {"avx512", &cpu_isa_avx512, has_avx512, "AVX-512 (F, BW, DQ and VL)", NULL},
    {"avx512_bf16", &cpu_isa_avx512_bf16, has_avx512_bf16, "AVX512_BF16 (VDPBF16PS)", NULL},
    {"amx", &cpu_isa_amx, has_amx, AMX, request_amx},
    {"amx_bf16x2", &cpu_isa_amx_bf16x2, has_amx, AMX, request_amx},
    {"amx_bf16x3", &cpu_isa_amx_bf16x3, has_amx, AMX, request_amx},
#endif
};

bool cpu_knows_isa(const char *name) {
    for (size_t i = 0; i < sizeof isas / sizeof isas[0]; i++) {
        if (strcmp(isas[i].name, name) == 0) {
            return true;
        }
    }
    return false;
}

const struct cpu_isa *cpu_find_isa(const char *name, attn_error *error) {
    for (size_t i = 0; i < sizeof isas / sizeof isas[0]; i++) {
        if (strcmp(isas[i].name, name) == 0) {
            const bool present = isas[i].present();
            if (present && (isas[i].request == NULL || isas[i].request(error) == ATTN_OK)) {
                return isas[i].isa;
            }
            if (!present) {
                attn_fail(error, ATTN_UNSUPPORTED, "this CPU lacks %s", isas[i].needs);
            }
        }
    }
    return NULL;
}

/* ---- names for people ------------------------------------------------------------------------ */

#if defined(__aarch64__)
static const char *arm_core(unsigned implementer, unsigned part) {
    static const struct {
        unsigned implementer, part;
        const char *name;
    } cores[] = {
        {0x41, 0xd03, "Cortex-A53"},  {0x41, 0xd08, "Cortex-A72"},  {0x41, 0xd0b, "Cortex-A76"},
        {0x41, 0xd0c, "Neoverse-N1"}, {0x41, 0xd40, "Neoverse-V1"}, {0x41, 0xd49, "Neoverse-N2"},
        {0x41, 0xd4f, "Neoverse-V2"}, {0x41, 0xd84, "Neoverse-V3"}, {0x41, 0xd8e, "Neoverse-N3"},
        {0xc0, 0xac3, "Ampere-1"},    {0xc0, 0xac4, "Ampere-1a"},
    };
    for (size_t i = 0; i < sizeof cores / sizeof cores[0]; i++) {
        if (cores[i].implementer == implementer && cores[i].part == part) {
            return cores[i].name;
        }
    }
    return "Arm CPU";
}
#endif

/* The model from /proc/cpuinfo: a name on x86, two numbers on Arm. */
static void read_model(char *name, size_t size) {
    char line[256];
    FILE *file = fopen("/proc/cpuinfo", "re");
    snprintf(name, size, "%s", "CPU");
    if (file == NULL) {
        return;
    }
#if defined(__aarch64__)
    unsigned implementer = 0;
    unsigned part = 0;
    while (fgets(line, sizeof line, file) != NULL) {
        sscanf(line, "CPU implementer : %x", &implementer);
        sscanf(line, "CPU part : %x", &part);
    }
    snprintf(name, size, "%s", arm_core(implementer, part));
#else
    while (fgets(line, sizeof line, file) != NULL) {
        char model[96];
        if (sscanf(line, "model name : %95[^\n]", model) == 1) {
            snprintf(name, size, "%s", model);
            break;
        }
    }
#endif
    fclose(file);
}

void cpu_describe(attn_device *device) {
    read_model(device->name, sizeof device->name);
    size_t length = 0;
    device->arch[0] = '\0';
    for (size_t i = 0; i < sizeof isas / sizeof isas[0]; i++) {
        const bool again =
            i > 0 && isas[i].request != NULL && isas[i - 1].request != NULL; /* AMX */
        if (isas[i].present() && !again && length < sizeof device->arch) {
            length += (size_t)snprintf(device->arch + length, sizeof device->arch - length, "%s%s",
                                       length > 0 ? " " : "", isas[i].name);
        }
    }
    device->memory = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
}
