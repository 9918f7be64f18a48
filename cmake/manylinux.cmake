# SPDX-License-Identifier: Apache-2.0
#
# A toolchain for wheels: clang as packaged by PyPI's ziglang, which brings the headers and stubs of
# every glibc, so that one machine compiles for both architectures and for systems older than itself.
# Pass -DATTN_ZIG=path/of/zig and -DATTN_TARGET=x86_64 or aarch64.
#
# Invariant: what it links needs no glibc newer than 2.28 (manylinux_2_28: RHEL 8, Debian 10).
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES ATTN_ZIG ATTN_TARGET)
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR ${ATTN_TARGET})
# Without -fomit-frame-pointer zig keeps the frame pointer in vector loops, too.
set(CMAKE_C_COMPILER ${ATTN_ZIG} "cc -target ${ATTN_TARGET}-linux-gnu.2.28 -fomit-frame-pointer")
set(CMAKE_ASM_COMPILER ${ATTN_ZIG} "cc -target ${ATTN_TARGET}-linux-gnu.2.28")
# Stripped by the linker: the binutils of this machine may not know the other architecture.
set(CMAKE_SHARED_LINKER_FLAGS_INIT -s)
set(CMAKE_MODULE_LINKER_FLAGS_INIT -s)
set(CMAKE_EXE_LINKER_FLAGS_INIT -s)
# CMake wants one word for each of these.
foreach(program ar ranlib)
    string(TOUPPER ${program} variable)
    set(CMAKE_${variable} ${CMAKE_BINARY_DIR}/zig-${program})
    file(CONFIGURE OUTPUT ${CMAKE_${variable}} CONTENT "#!/bin/sh\nexec '@ATTN_ZIG@' @program@ \"$@\"\n" @ONLY)
    file(CHMOD ${CMAKE_${variable}} PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
endforeach()
