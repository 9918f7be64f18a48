/* SPDX-License-Identifier: Apache-2.0
 *
 * test_contexts.c - which CUDA context a call runs in: the one that is current on the device,
 * else the device's primary; whatever was current before is current afterwards.
 *
 * Also several devices, several attn contexts on one device, threads, and forks.
 *
 * Invariant: each test ends with nothing retained, nothing loaded and an empty stack.
 */
#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda/cuda_fixture.h"

static attn_context *open_with_kernel(const char *device) {
    attn_context *context = fake_open(device);
    if (context != NULL && !add_made_up(context, "made_up_fp16", ATTN_FP16)) {
        attn_close(context);
        context = NULL;
    }
    return context;
}

static void forward(const attn_plan *plan, void *stream) {
    const attn_tensors t = stand_ins();
    attn_error why;
    CHECK_STATUS(attn_forward(plan, &t, NULL, 0, stream, &why), ATTN_OK, &why);
}

/* No context is current: the primary is retained once, whatever is done, and released at last. */
TEST(primary) {
    const attn_problem p = gpu_problem();
    if (!fake_begin(1)) {
        return;
    }
    attn_context *context = open_with_kernel("cuda");
    if (context == NULL) {
        return;
    }
    for (int n = 0; n < 5; n++) {
        attn_plan *plan = plan_on(context, &p, "made_up_fp16");
        if (plan == NULL) {
            break;
        }
        fake->forget();
        forward(plan, NULL);
        forward(plan, NULL);
        CHECK_EQ(fake->depth(), 0);
        CHECK_EQ(fake->retains(0), 1);
        const struct fake_call *launch = launch_at(1);
        CHECK(launch != NULL && launch->context == fake->primary(0));
        attn_plan_destroy(plan);
    }
    CHECK_EQ(fake->live(FAKE_LIBRARY), 1); /* loaded once, kept for the next plan */
    attn_close(context);
    fake_end();
}

/* The first plan of a variant may be made while a stream is captured, and the thread's mode is what
 * it was. */
TEST(capture) {
    const attn_problem p = gpu_problem();
    if (!fake_begin(1)) {
        return;
    }
    attn_context *context = open_with_kernel("cuda");
    fake->settings->capturing = true;
    attn_plan *plan = context != NULL ? plan_on(context, &p, "made_up_fp16") : NULL;
    void *function = NULL;
    if (plan != NULL && attn_driver_function(context, "cuThreadExchangeStreamCaptureMode",
                                             &function, NULL) == ATTN_OK) {
        int mode = 0;
        int (*exchange)(int *mode) = NULL;
        memcpy(&exchange, &function, sizeof function);
        CHECK_EQ(exchange(&mode), 0);
        CHECK_EQ(mode, 0);
    }
    attn_plan_destroy(plan);
    attn_close(context);
    fake_end();
}

/* A context of the program's own that is current on the device is used, and stays current; the plan
 * may have been made in another one. */
TEST(foreign_context) {
    const attn_problem p = gpu_problem();
    for (int made_inside = 0; made_inside < 2; made_inside++) {
        if (!fake_begin(2)) {
            return;
        }
        attn_context *context = open_with_kernel("cuda:1");
        void *foreign = fake->context_create(1), *another = fake->context_create(1);
        if (context == NULL) {
            return;
        }
        if (made_inside) {
            fake_push(context, foreign);
        }
        attn_plan *plan = plan_on(context, &p, "made_up_fp16");
        CHECK_EQ(fake->depth(), made_inside);
        if (!made_inside) {
            fake_push(context, foreign);
        }
        for (int n = 0; plan != NULL && n < 3; n++) {
            void *expected = n == 1 ? another : foreign;
            if (n == 1) {
                fake_push(context, another);
            }
            fake->forget();
            forward(plan, NULL);
            const struct fake_call *launch = launch_at(0);
            CHECK(launch != NULL && launch->context == expected);
            CHECK(fake->top() == expected);
            CHECK_EQ(fake->depth(), n == 1 ? 2 : 1);
            if (n == 1) {
                fake_pop(context);
            }
        }
        fake_pop(context);
        attn_plan_destroy(plan);
        attn_close(context);
        fake->context_destroy(foreign);
        fake->context_destroy(another);
        fake_end();
    }
}

/* A context of another device is current: it is left alone, the launch goes to ours. */
TEST(context_of_another_device) {
    const attn_problem p = gpu_problem();
    if (!fake_begin(2)) {
        return;
    }
    attn_context *context = open_with_kernel("cuda:1");
    void *foreign = fake->context_create(0);
    if (context == NULL) {
        return;
    }
    fake_push(context, foreign);
    attn_plan *plan = plan_on(context, &p, "made_up_fp16");
    CHECK(fake->top() == foreign && fake->depth() == 1);
    if (plan != NULL) {
        fake->forget();
        forward(plan, NULL);
        const struct fake_call *launch = launch_at(0);
        CHECK(launch != NULL && launch->device == 1 && launch->context == fake->primary(1));
        fake->fail("cuLaunchKernelEx", 1, FAKE_LAUNCH_FAILED);
        const attn_tensors t = stand_ins();
        attn_error why;
        CHECK_STATUS(attn_forward(plan, &t, NULL, 0, NULL, &why), ATTN_DEVICE, &why);
    }
    CHECK(fake->top() == foreign && fake->depth() == 1);
    CHECK_EQ(fake->retains(0), 0);
    attn_plan_destroy(plan);
    attn_close(context);
    CHECK(fake->top() == foreign && fake->depth() == 1);
    context = open_with_kernel("cuda:1"); /* with a foreign context from the beginning */
    CHECK(fake->top() == foreign && fake->depth() == 1);
    fake_pop(context);
    attn_close(context);
    fake->context_destroy(foreign);
    fake_end();
}

/* Two devices and the CPU at once; and two contexts on one device, closed one after the other. */
TEST(several_contexts) {
    static const char *const devices[] = {"cuda:0", "cuda:1", "cuda:1"};
    const attn_problem p = gpu_problem();
    attn_context *contexts[3];
    attn_plan *plans[3];
    if (!fake_begin(2)) {
        return;
    }
    fake->settings->capability[1] = 86;
    for (int i = 0; i < 3; i++) {
        contexts[i] = open_with_kernel(devices[i]);
        if (contexts[i] == NULL) {
            return;
        }
        plans[i] = plan_on(contexts[i], &p, "made_up_fp16");
    }
    fake->forget();
    for (int i = 0; i < 6; i++) {
        forward(plans[i % 3], NULL);
    }
    for (int i = 0; i < 6; i++) {
        const struct fake_call *launch = launch_at(i);
        CHECK(launch != NULL && launch->device == (i % 3 != 0));
    }
    attn_plan_destroy(plans[1]);
    attn_close(contexts[1]);
    forward(plans[2], NULL);
    forward(plans[0], NULL);
    attn_plan_destroy(plans[2]);
    attn_close(contexts[2]);
    CHECK_EQ(fake->retains(1), 0);
    forward(plans[0], NULL);
    attn_plan_destroy(plans[0]);
    attn_close(contexts[0]);
    fake_end();
}

/* Compiled-in variants on two devices of different architecture: each gets an image that fits. */
TEST(several_architectures) {
    SKIP_WITHOUT_KERNELS();
    static const int capabilities[] = {80, 90, 100};
    static const char *const devices[] = {"cuda:0", "cuda:1", "cuda:2"};
    const attn_problem p = gpu_problem();
    attn_context *contexts[3];
    attn_plan *plans[3];
    if (!fake_begin(3)) {
        return;
    }
    for (int i = 0; i < 3; i++) {
        fake->settings->capability[i] = capabilities[i];
    }
    for (int i = 0; i < 3; i++) {
        contexts[i] = fake_open(devices[i]);
        plans[i] = contexts[i] != NULL ? plan_on(contexts[i], &p, NULL) : NULL;
        if (plans[i] == NULL) {
            return;
        }
    }
    fake->forget();
    for (int i = 0; i < 3; i++) {
        forward(plans[i], NULL);
        const struct fake_call *launch = launch_at(i);
        CHECK(launch != NULL && launch->device == i);
    }
    for (int i = 0; i < 3; i++) {
        attn_plan_destroy(plans[i]);
        attn_close(contexts[i]);
    }
    fake_end();
}

/* ---- threads --------------------------------------------------------------------------------- */

enum { THREADS = 8, ROUNDS = 30 };

struct worker {
    pthread_t thread;
    attn_context *context;
    const attn_plan *shared_plan;
    int number;
    int failures;
    attn_error why; /* of the last failure */
};

static void expect_ok(struct worker *worker, attn_status status, const attn_error *why) {
    if (status != ATTN_OK) {
        worker->failures++;
        worker->why = *why;
    }
}

static void *work(void *argument) {
    struct worker *worker = argument;
    static const char *const names[] = {"made_up_fp16", "other_fp16", "third_fp16"};
    const attn_tensors t = stand_ins();
    attn_problem p = gpu_problem();
    attn_error why;
    for (int n = 0; n < ROUNDS; n++) {
        attn_plan *plan = NULL;
        p.seq_q = 1000 + worker->number; /* distinguishes them in the log */
        expect_ok(worker,
                  attn_plan_create(worker->context, &p,
                                   ATTN_BY_NAME(names[(n + worker->number) % 3]), &plan, &why),
                  &why);
        if (plan != NULL) {
            expect_ok(worker, attn_forward(plan, &t, NULL, 0, NULL, &why), &why);
        }
        expect_ok(worker, attn_forward(worker->shared_plan, &t, NULL, 0, NULL, &why), &why);
        attn_plan_destroy(plan);
        worker->failures += fake->depth() != 0;
    }
    return NULL;
}

TEST(threads) {
    struct worker workers[THREADS];
    const attn_problem p = gpu_problem();
    if (!fake_begin(1)) {
        return;
    }
    attn_context *context = open_with_kernel("cuda");
    if (context == NULL || !add_made_up(context, "other_fp16", ATTN_FP16) ||
        !add_made_up(context, "third_fp16", ATTN_FP16)) {
        return;
    }
    attn_plan *plan = plan_on(context, &p, "made_up_fp16");
    fake->forget();
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.context = context, .shared_plan = plan, .number = i};
        if (!CHECK(pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0)) {
            abort();
        }
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(workers[i].thread, NULL);
        CHECK_MSG(workers[i].failures == 0, "thread %d: %d failures (%s)", i, workers[i].failures,
                  workers[i].why.text);
    }
    CHECK_EQ(calls_of("cuLaunchKernelEx"), 2 * THREADS * ROUNDS);
    CHECK_EQ(fake->live(FAKE_LIBRARY), 3); /* each loaded once, in any order */
    CHECK_EQ(fake->retains(0), 1);
    attn_plan_destroy(plan);
    attn_close(context);
    fake_end();
}

/* ---- fork ------------------------------------------------------------------------------------ */

/* What the child finds, as bits of its exit code. */
static int in_the_child(attn_context *context, attn_plan *plan) {
    const attn_tensors t = stand_ins();
    const attn_problem p = gpu_problem();
    attn_plan *another = NULL;
    attn_error why;
    size_t count;
    int wrong = 0;
    alarm(30);
    fake->forget();
    wrong |= attn_forward(plan, &t, NULL, 0, NULL, &why) != ATTN_DEVICE;
    wrong |= (strstr(why.text, "fork") == NULL) << 1;
    wrong |=
        (attn_plan_create(context, &p, ATTN_BY_NAME("made_up_fp16"), &another, &why) != ATTN_DEVICE)
        << 2;
    wrong |= (another != NULL || strstr(why.text, "fork") == NULL) << 3;
    attn_plan_destroy(plan);
    attn_close(context);
    fake->calls(&count);
    wrong |= (count != 0) << 4; /* a driver in a forked child may do anything */
    return wrong;
}

TEST(fork) {
    const attn_problem p = gpu_problem();
    if (!fake_begin(1)) {
        return;
    }
    attn_context *context = open_with_kernel("cuda");
    attn_plan *plan = context != NULL ? plan_on(context, &p, "made_up_fp16") : NULL;
    if (plan == NULL) {
        return;
    }
    int status = -1;
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        _exit(in_the_child(context, plan));
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK_MSG(WIFEXITED(status), "the child ended with signal %d", WTERMSIG(status));
    static const char *const wrong[] = {"forward", "its sentence", "plan", "its sentence",
                                        "the driver was called"};
    for (int i = 0; WIFEXITED(status) && i < 5; i++) {
        CHECK_MSG(!(WEXITSTATUS(status) >> i & 1), "in the child: %s", wrong[i]);
    }
    forward(plan, NULL); /* the parent goes on */
    attn_plan_destroy(plan);
    attn_close(context);
    fake_end();
}

TEST_MAIN()
