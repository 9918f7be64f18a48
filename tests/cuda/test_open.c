/* SPDX-License-Identifier: Apache-2.0
 *
 * test_open.c - opening a GPU: no driver, a wrong one, too old a one, no device, too old a
 * device are ATTN_UNSUPPORTED with the reason, and CPU contexts do not notice.
 *
 * Invariant: after each refusal nothing is retained or loaded, and *context is NULL.
 */
#include <stdlib.h>

#include "cuda/cuda_fixture.h"

/* Refused by status, with this in the sentence; nothing is leaked. */
static void refused(const char *device, attn_status status, const char *part) {
    attn_error why;
    const attn_status got = fake_try(device, &why);
    CHECK_MSG(got == status, "%s: %s, expected %s (%s)", device, attn_status_name(got),
              attn_status_name(status), why.text);
    CHECK_CONTAINS(why.text, part);
    fake_end();
}

static void refused_driver(const char *driver, const char *part) {
    attn_options options;
    attn_error why;
    attn_context *context = (attn_context *)(void *)&options;
    attn_options_init(&options);
    options.device = "cuda";
    options.driver = driver;
    CHECK_STATUS(attn_open(&options, &context, &why), ATTN_UNSUPPORTED, &why);
    CHECK_CONTAINS(why.text, part);
    CHECK(context == NULL);
    attn_close(context);
}

TEST(no_driver) {
    refused_driver("/nonexistent/libcuda.so.1", "/nonexistent/libcuda.so.1");
    refused_driver("/dev/null", "/dev/null");
}

/* A library, but not a driver. */
TEST(no_look_up_function) {
    refused_driver("libm.so.6", "cuGetProcAddress");
}

TEST(missing_functions) {
    static const char *const needed[] = {
        "cuInit",
        "cuDeviceGetCount",
        "cuDeviceGet",
        "cuDeviceGetName",
        "cuCtxPushCurrent",
        "cuDeviceGetAttribute",
        "cuCtxGetCurrent",
        "cuCtxGetDevice",
        "cuCtxPopCurrent",
        "cuThreadExchangeStreamCaptureMode",
        "cuStreamIsCapturing",
        "cuLibraryLoadData",
        "cuLibraryGetKernel",
        "cuLaunchKernelEx",
        "cuLibraryUnload",
        "cuGetErrorString",
        "cuDeviceTotalMem",
        "cuDevicePrimaryCtxRetain",
    };
    for (size_t i = 0; i < 2 * (sizeof needed / sizeof needed[0]); i++) {
        if (!fake_begin(1)) {
            return;
        }
        fake->settings->missing = needed[i / 2];
        fake->settings->missing_code = i % 2 ? FAKE_NOT_FOUND : FAKE_SUCCESS;
        refused("cuda", ATTN_UNSUPPORTED, needed[i / 2]);
    }
}

TEST(old_driver) {
    if (!fake_begin(1)) {
        return;
    }
    fake->settings->version = 11080;
    refused("cuda", ATTN_UNSUPPORTED, "11.8");
    refused("cuda", ATTN_UNSUPPORTED, "12.0");
    fake->settings->version = 12000; /* the least */
    attn_error why;
    CHECK_STATUS(fake_try("cuda", &why), ATTN_OK, &why);
    fake_end();
}

TEST(errors_of_the_driver) {
    static const struct {
        const char *function;
        int code;
        const char *part;
    } cases[] = {
        {"cuInit", FAKE_NO_DEVICE, "no CUDA-capable device is detected"},
        {"cuInit", FAKE_UNKNOWN, "unknown error"},
        {"cuInit", 12345, "12345"}, /* a code without a name */
        {"cuDeviceGetCount", FAKE_UNKNOWN, "unknown error"},
        {"cuDeviceGet", FAKE_UNKNOWN, "unknown error"},
        {"cuDeviceGetName", FAKE_UNKNOWN, "unknown error"},
        {"cuDeviceTotalMem", FAKE_UNKNOWN, "unknown error"},
        {"cuDeviceGetAttribute", FAKE_UNKNOWN, "unknown error"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        attn_error why;
        if (!fake_begin(1)) {
            return;
        }
        fake->fail(cases[i].function, 1, cases[i].code);
        const attn_status got = fake_try("cuda", &why);
        CHECK_MSG(got == ATTN_DEVICE || got == ATTN_UNSUPPORTED, "%s gave %d: %s (%s)",
                  cases[i].function, cases[i].code, attn_status_name(got), why.text);
        CHECK_CONTAINS(why.text, cases[i].part);
        fake_end();
        CHECK_STATUS(fake_try("cuda", &why), ATTN_OK, &why); /* the next one works */
        fake_end();
    }
    /* an absent device is not a failing one */
    if (fake_begin(1)) {
        fake->fail("cuInit", 1, FAKE_NO_DEVICE);
        refused("cuda", ATTN_UNSUPPORTED, "");
    }
}

TEST(number_of_devices) {
    attn_error why;
    if (!fake_begin(0)) {
        return;
    }
    refused("cuda", ATTN_UNSUPPORTED, "0");
    fake_begin(2);
    refused("cuda:7", ATTN_UNSUPPORTED, "7");
    refused("cuda:7", ATTN_UNSUPPORTED, "2");
    refused("cuda:2", ATTN_UNSUPPORTED, "2");
    CHECK_STATUS(fake_try("cuda:1", &why), ATTN_OK, &why);
    refused("cuda:99999999999999999999", ATTN_INVALID, "99999999999999999999");
    refused("cuda:", ATTN_INVALID, "cuda:");
    refused("cuda:1x", ATTN_INVALID, "cuda:1x");
}

TEST(compute_capability) {
    static const int old[] = {35, 61, 70, 75};
    static const char *const names[] = {"3.5", "6.1", "7.0", "7.5"};
    if (!fake_begin(2)) {
        return;
    }
    for (int i = 0; i < 4; i++) {
        fake->settings->capability[0] = old[i];
        refused("cuda", ATTN_UNSUPPORTED, names[i]);
        refused("cuda", ATTN_UNSUPPORTED, "8.0"); /* what was expected */
        attn_error why;
        CHECK_STATUS(fake_try("cuda:1", &why), ATTN_OK, &why);
    }
}

TEST(environment) {
    attn_options options;
    attn_context *context = NULL;
    attn_error why;
    if (!fake_begin(1)) {
        return;
    }
    attn_options_init(&options);
    options.device = "cuda";
    setenv("ATTN_DRIVER", FAKE_DRIVER, 1);
    CHECK_STATUS(attn_open(&options, &context, &why), ATTN_OK, &why);
    attn_close(context);
    setenv("ATTN_DRIVER", "/nonexistent/driver", 1);
    CHECK_STATUS(attn_open(&options, &context, &why), ATTN_UNSUPPORTED, &why);
    CHECK_CONTAINS(why.text, "/nonexistent/driver");
    options.driver = FAKE_DRIVER; /* an option is stronger */
    CHECK_STATUS(attn_open(&options, &context, &why), ATTN_OK, &why);
    attn_close(context);
    options.device = "cpu"; /* needs no driver */
    options.driver = NULL;
    CHECK_STATUS(attn_open(&options, &context, &why), ATTN_OK, &why);
    attn_close(context);
    unsetenv("ATTN_DRIVER");
    fake_end();
}

TEST(device) {
    attn_device device = {.size = sizeof device};
    attn_error why;
    if (!fake_begin(2)) {
        return;
    }
    fake->settings->capability[1] = 86;
    attn_context *context = fake_open("cuda:1");
    if (context != NULL && CHECK_STATUS(attn_device_get(context, &device, &why), ATTN_OK, &why)) {
        CHECK_STR(device.name, "Fake GPU 1");
        CHECK_STR(device.arch, "sm_86");
        CHECK_EQ(device.units, 21);
        CHECK_EQ(device.memory, (int64_t)8 << 30);
        CHECK_EQ(device.driver, 12080);
        CHECK_EQ(device.shared, 101376);
    }
    /* a program that was compiled when the struct was shorter */
    memset(&device, 0xEE, sizeof device);
    device.size = offsetof(attn_device, driver);
    const attn_status status = attn_device_get(context, &device, &why);
    CHECK(status == ATTN_INVALID || (uint32_t)device.driver == 0xEEEEEEEE);
    attn_close(context);
    fake_end();
}

TEST(driver_function) {
    attn_context *cpu = NULL;
    attn_error why;
    void *function = NULL;
    if (!fake_begin(1)) {
        return;
    }
    attn_context *context = fake_open("cuda");
    if (context == NULL) {
        return;
    }
    CHECK_STATUS(attn_driver_function(context, "cuMemAlloc", &function, &why), ATTN_OK, &why);
    CHECK(function != NULL);
    for (int code = 0; code <= FAKE_NOT_FOUND; code += FAKE_NOT_FOUND) {
        fake->settings->missing_code = code;
        CHECK_STATUS(attn_driver_function(context, "cuNoSuch", &function, &why), ATTN_UNSUPPORTED,
                     &why);
        CHECK_CONTAINS(why.text, "cuNoSuch");
        CHECK(function == NULL);
    }
    CHECK_STATUS(attn_driver_function(NULL, "cuInit", &function, &why), ATTN_INVALID, &why);
    CHECK_STATUS(attn_driver_function(context, NULL, &function, &why), ATTN_INVALID, &why);
    CHECK_STATUS(attn_driver_function(context, "cuInit", NULL, &why), ATTN_INVALID, &why);
    CHECK_STATUS(attn_open(NULL, &cpu, &why), ATTN_OK, &why);
    CHECK_STATUS(attn_driver_function(cpu, "cuInit", &function, &why), ATTN_UNSUPPORTED, &why);
    attn_close(cpu);
    attn_close(context);
    fake_end();
}

/* A CPU context that was there before, between and after computes on. */
TEST(cpu_is_unaffected) {
    attn_context *cpu = NULL;
    attn_error why;
    attn_problem p;
    float q[8] = {1, 2, 3, 4, 5, 6, 7, 8}, o[8];
    attn_tensors t;
    if (!fake_begin(1) || !CHECK_STATUS(attn_open(NULL, &cpu, &why), ATTN_OK, &why)) {
        return;
    }
    attn_problem_init(&p);
    attn_tensors_init(&t);
    p.head_dim = 8;
    p.alignment = 4;
    t.q = t.k = t.v = q;
    t.o = o;
    for (int n = 0; n < 3; n++) {
        attn_context *gpu = n == 1 ? fake_open("cuda") : NULL;
        fake->fail(n == 0 ? "cuInit" : NULL, 1, FAKE_NO_DEVICE);
        CHECK_EQ(fake_try("cuda", &why), n == 0 ? ATTN_UNSUPPORTED : ATTN_OK);
        attn_plan *plan = plan_on(cpu, &p, NULL);
        const size_t size = attn_workspace_size(plan);
        void *workspace = aligned_alloc(4096, (size + 4096) / 4096 * 4096);
        fake->forget();
        memset(o, 0xFF, sizeof o);
        CHECK_STATUS(attn_forward(plan, &t, workspace, size, NULL, &why), ATTN_OK, &why);
        CHECK(memcmp(o, q, sizeof o) == 0); /* one key: its value */
        size_t count;
        fake->calls(&count);
        CHECK_EQ(count, 0);
        free(workspace);
        attn_plan_destroy(plan);
        attn_close(gpu);
    }
    attn_close(cpu);
    fake_end();
}

/* Host code of a GPU context proves like that of a CPU. */
TEST(reference_on_a_gpu_context) {
    attn_error why;
    attn_problem p;
    attn_tensors t;
    float q[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    double o[8];
    if (!fake_begin(1)) {
        return;
    }
    attn_context *context = fake_open("cuda");
    attn_problem_init(&p);
    attn_tensors_init(&t);
    p.head_dim = 8;
    t.q = t.k = t.v = q;
    CHECK_STATUS(attn_reference(context, &p, &t, ATTN_EXACT, NULL, 1, o, NULL, &why), ATTN_OK,
                 &why);
    for (int i = 0; i < 8; i++) {
        const double expected = (double)q[i];
        CHECK(memcmp(&o[i], &expected, sizeof expected) == 0);
    }
    attn_close(context);
    fake_end();
}

TEST_MAIN()
