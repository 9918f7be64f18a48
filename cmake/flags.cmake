# SPDX-License-Identifier: Apache-2.0
#
# Compiler flags that hold for every file: ATTN_C_FLAGS, and ATTN_SHARED_LINK_FLAGS for the library.
#
# Invariant: no flag lets the compiler change floating-point results (no -ffast-math, no contraction)
# and none depends on the machine or the folder that builds (no -march=native, no absolute path).

set(ATTN_C_FLAGS -D_GNU_SOURCE -Wall -Wextra -Wshadow -ffp-contract=off)
# The same bytes in every folder: no names of folders in line tables, and none in attest's RUNPATH.
# The last one that matches counts, and the build folder is often inside the source folder.
add_compile_options(-ffile-prefix-map=${PROJECT_SOURCE_DIR}=.
                    -ffile-prefix-map=${PROJECT_BINARY_DIR}=build)
set(CMAKE_BUILD_RPATH_USE_ORIGIN ON)
if(ATTN_WERROR)
    list(APPEND ATTN_C_FLAGS -Werror)
endif()

# Compressed, what debuggers read of libattn.so is 0.5 MB instead of 1.3.
set(ATTN_SHARED_LINK_FLAGS -Wl,--no-undefined -Wl,-z,defs -Wl,--compress-debug-sections=zlib)

if(ATTN_SANITIZE)
    add_compile_options(-fsanitize=${ATTN_SANITIZE} -fno-omit-frame-pointer
                        -fno-sanitize-recover=all)
    add_link_options(-fsanitize=${ATTN_SANITIZE})
    # Clang links its sanitizer runtime into programs only, so that a library cannot be complete. And
    # it objects to 0 added to NULL, which C2y allows.
    if(CMAKE_C_COMPILER_ID MATCHES Clang)
        set(ATTN_SHARED_LINK_FLAGS "")
        add_compile_options(-fno-sanitize=pointer-overflow)
    endif()
endif()
if(ATTN_LIBFUZZER)
    add_compile_options(-fsanitize=fuzzer-no-link)
endif()
