/* SPDX-License-Identifier: Apache-2.0
 *
 * test_fork.c - after fork() the child may use a CPU context, and so may the parent.
 *
 * A context with threads is used, the process forks, and the child computes with the inherited
 * context and plan, with a new plan, and with a new context: the same bits each time. It may close
 * what it inherited. The parent is not affected, nor is a grandchild.
 *
 * Invariant: a child that hangs is ended by its alarm and counts as a failure. Where the platform
 * itself cannot start threads in such a child (ThreadSanitizer, qemu-user) a probe without the
 * library finds that out, and the tests are skipped.
 */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test.h"
#include "tool/cases/cases.h"

enum { CHILD_SECONDS = 30 };

/* ---- can it be done here --------------------------------------------------------------------- */

static void *wait_for_byte(void *pipe_end) {
    char byte;
    const ssize_t got = read(*(const int *)pipe_end, &byte, 1);
    (void)got;
    return NULL;
}

static void *return_at_once(void *argument) {
    return argument;
}

/* Forks beside a thread that is alive, and starts a thread in the child. */
static bool probe(void) {
    int ends[2], status = 1;
    pthread_t thread;
    if (pipe(ends) != 0 || pthread_create(&thread, NULL, wait_for_byte, &ends[0]) != 0) {
        return false;
    }
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        pthread_t another;
        alarm(CHILD_SECONDS);
        _exit(pthread_create(&another, NULL, return_at_once, NULL) != 0 ||
              pthread_join(another, NULL) != 0);
    }
    const bool waited = child > 0 && waitpid(child, &status, 0) == child;
    const ssize_t sent = write(ends[1], "", 1);
    (void)sent;
    pthread_join(thread, NULL);
    close(ends[0]);
    close(ends[1]);
    return waited && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static bool can_fork(void) {
    static int answer = -1;
    if (answer < 0) {
        answer = probe();
    }
    return answer;
}

#define SKIP_UNLESS_FORK()                                                                         \
    if (!can_fork()) {                                                                             \
        SKIP("no threads in a child that was forked beside threads");                              \
    }

/* ---- what is carried over -------------------------------------------------------------------- */

struct scene {
    attn_context *context;
    attn_plan *plan;
    struct sample s;
    unsigned char *bits; /* O of the first run */
};

static bool run_scene(struct scene *scene, const attn_plan *plan) {
    struct guarded workspace;
    const size_t size = attn_workspace_size(plan);
    sample_poison(&scene->s);
    if (!guarded_alloc(&workspace, size, attn_workspace_alignment(plan), true)) {
        return false;
    }
    const bool ok =
        attn_forward(plan, &scene->s.tensors, workspace.data, size, NULL, NULL) == ATTN_OK &&
        !sample_damage(&scene->s) && guarded_intact(&workspace);
    guarded_free(&workspace);
    return ok;
}

static bool same_bits(const struct scene *scene) {
    return memcmp(scene->bits, scene->s.o.data, scene->s.o.size) == 0;
}

static bool scene_make(struct scene *scene, attn_dtype dtype, int32_t threads, bool decode) {
    attn_options options;
    attn_problem p;
    attn_error why;
    struct recipe recipe;
    memset(scene, 0, sizeof *scene);
    attn_options_init(&options);
    options.threads = threads;
    attn_problem_init(&p);
    p.dtype = dtype;
    p.heads_q = 4;
    p.seq_q = decode ? 1 : 120;
    p.seq_kv = decode ? 2500 : 150;
    recipe_init(&recipe, &p, 1);
    if (!CHECK_STATUS(attn_open(&options, &scene->context, &why), ATTN_OK, &why) ||
        !CHECK(sample_make(&scene->s, &recipe)) ||
        !CHECK_STATUS(attn_plan_create(scene->context, &p, NULL, &scene->plan, &why), ATTN_OK,
                      &why)) {
        return false;
    }
    scene->bits = malloc(scene->s.o.size);
    if (!CHECK(scene->bits && run_scene(scene, scene->plan))) {
        return false;
    }
    memcpy(scene->bits, scene->s.o.data, scene->s.o.size);
    return true;
}

static void scene_free(struct scene *scene) {
    attn_plan_destroy(scene->plan);
    attn_close(scene->context);
    sample_free(&scene->s);
    free(scene->bits);
}

/* Runs `body` in a child; its exit code says what failed, 0 is success. */
static void in_child(int (*body)(struct scene *), struct scene *scene) {
    int status = 0;
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        alarm(CHILD_SECONDS);
        _exit(body(scene));
    }
    if (!CHECK(child > 0) || !CHECK(waitpid(child, &status, 0) == child)) {
        return;
    }
    CHECK_MSG(WIFEXITED(status), "the child was ended by signal %d", WTERMSIG(status));
    CHECK_MSG(!WIFEXITED(status) || WEXITSTATUS(status) == 0, "the child failed in step %d",
              WEXITSTATUS(status));
}

static int use_everything(struct scene *scene) {
    attn_plan *plan = NULL;
    attn_comparison result = {.size = sizeof result};
    const size_t rows = (size_t)(scene->s.full.heads_q * scene->s.full.seq_q);
    for (int i = 0; i < 3; i++) {
        if (!run_scene(scene, scene->plan)) {
            return 1;
        }
        if (!same_bits(scene)) {
            return 2;
        }
    }
    if (attn_verify(scene->context, &scene->s.problem, &scene->s.tensors, NULL, rows, &result,
                    NULL) != ATTN_OK ||
        !result.pass) {
        return 3;
    }
    if (attn_plan_create(scene->context, &scene->s.problem, NULL, &plan, NULL) != ATTN_OK ||
        !run_scene(scene, plan) || !same_bits(scene)) {
        return 4;
    }
    attn_plan_destroy(plan);
    return 0;
}

static int use_and_close(struct scene *scene) {
    const int step = use_everything(scene);
    if (step) {
        return step;
    }
    attn_plan_destroy(scene->plan);
    attn_close(scene->context);
    return 0;
}

static int close_unused(struct scene *scene) {
    attn_plan_destroy(scene->plan);
    attn_close(scene->context);
    return 0;
}

static int open_another(struct scene *scene) {
    attn_context *context = NULL;
    attn_plan *plan = NULL;
    if (attn_open(NULL, &context, NULL) != ATTN_OK) {
        return 5;
    }
    if (attn_plan_create(context, &scene->s.problem, NULL, &plan, NULL) != ATTN_OK ||
        !run_scene(scene, plan) || !same_bits(scene)) {
        return 6;
    }
    attn_plan_destroy(plan);
    attn_close(context);
    return use_everything(scene);
}

static int fork_again(struct scene *scene) {
    const int step = use_everything(scene);
    if (step) {
        return step;
    }
    int status = 0;
    const pid_t child = fork();
    if (child == 0) {
        alarm(CHILD_SECONDS);
        _exit(use_and_close(scene));
    }
    if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status)) {
        return 7;
    }
    return WEXITSTATUS(status) ? 10 + WEXITSTATUS(status) : use_everything(scene);
}

static void fork_with(attn_dtype dtype, int32_t threads, bool decode) {
    int (*const bodies[])(struct scene *) = {use_everything, use_and_close, close_unused,
                                             open_another, fork_again};
    struct scene scene;
    if (scene_make(&scene, dtype, threads, decode)) {
        for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
            in_child(bodies[i], &scene);
            CHECK(run_scene(&scene, scene.plan) && same_bits(&scene));
        }
        CHECK_EQ(use_everything(&scene), 0);
    }
    scene_free(&scene);
}

TEST(one_thread) {
    SKIP_UNLESS_FORK()
    fork_with(ATTN_FP32, 1, false);
}
TEST(three_threads) {
    SKIP_UNLESS_FORK()
    fork_with(ATTN_FP32, 3, false);
    fork_with(ATTN_BF16, 3, false);
}
TEST(three_threads_decode) {
    SKIP_UNLESS_FORK()
    fork_with(ATTN_FP16, 3, true);
}

/* A context that was opened but never used before the fork. */
TEST(fork_before_first_use) {
    SKIP_UNLESS_FORK()
    struct scene scene;
    if (scene_make(&scene, ATTN_FP32, 2, false)) {
        attn_plan_destroy(scene.plan);
        attn_close(scene.context);
        attn_options options;
        attn_error why;
        attn_options_init(&options);
        options.threads = 2;
        if (CHECK_STATUS(attn_open(&options, &scene.context, &why), ATTN_OK, &why) &&
            CHECK_STATUS(attn_plan_create(scene.context, &scene.s.problem, NULL, &scene.plan, &why),
                         ATTN_OK, &why)) {
            in_child(use_and_close, &scene);
            CHECK_EQ(use_everything(&scene), 0);
        }
    }
    scene_free(&scene);
}

TEST_MAIN()
