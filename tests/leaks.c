/* SPDX-License-Identifier: Apache-2.0
 *
 * leaks.c - linked into each test program under AddressSanitizer: lets LeakSanitizer search only
 * where something can be found.
 *
 * Its search takes four seconds for each process on aarch64, whatever the process did. Where all
 * that was allocated has been freed there is nothing to search for.
 *
 * Invariant: the search is left out only if not one block is allocated at the end.
 */
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>

/* What <sanitizer/allocator_interface.h> and <sanitizer/lsan_interface.h> declare. */
int __sanitizer_install_malloc_and_free_hooks(void (*on_malloc)(const volatile void *, size_t),
                                              void (*on_free)(const volatile void *));
int __lsan_is_turned_off(void);

static atomic_long blocks;

static void count_malloc(const volatile void *memory, size_t size) {
    (void)size;
    atomic_fetch_add(&blocks, memory != NULL);
}

static void count_free(const volatile void *memory) {
    atomic_fetch_sub(&blocks, memory != NULL);
}

__attribute__((constructor)) static void count_blocks(void) {
    static char buffer[BUFSIZ]; /* stdout would keep one of its own */
    if (setvbuf(stdout, buffer, _IOLBF, sizeof buffer) != 0 ||
        __sanitizer_install_malloc_and_free_hooks(count_malloc, count_free) == 0) {
        atomic_store(&blocks, 1); /* they were not counted */
    }
}

int __lsan_is_turned_off(void) {
    return atomic_load(&blocks) == 0;
}
