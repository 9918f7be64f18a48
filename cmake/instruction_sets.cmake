# SPDX-License-Identifier: Apache-2.0
#
# Which file of src/cpu is compiled for which instruction set, and with which flags.
#
# Invariant: only the files named here get instruction set flags, so that code outside them runs on
# every CPU of the architecture. A file is compiled only for the architecture that it is for.

set(avx512_flags -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c)

set(ATTN_AARCH64_FILES neon.c neon_bf16.c)
set(ATTN_FLAGS_neon.c "")
set(ATTN_FLAGS_neon_bf16.c -march=armv8.2-a+bf16+fp16)
if(ATTN_ZIG) # its names are LLVM's, and it takes no architecture, only processors
    set(ATTN_FLAGS_neon_bf16.c -mcpu=generic+v8_2a+bf16+fullfp16)
endif()

set(ATTN_X86_64_FILES avx2.c avx512.c avx512_bf16.c amx.c amx_bf16x2.c amx_bf16x3.c)
set(ATTN_FLAGS_avx2.c -mavx2 -mfma -mf16c)
set(ATTN_FLAGS_avx512.c ${avx512_flags})
set(ATTN_FLAGS_avx512_bf16.c ${avx512_flags} -mavx512bf16)
foreach(name amx amx_bf16x2 amx_bf16x3)
    set(ATTN_FLAGS_${name}.c ${avx512_flags} -mavx512bf16 -mamx-tile -mamx-bf16)
endforeach()

# Takes out of the list named by `sources` what this build does not compile, and sets the flags of
# the rest. An instruction set file that is missing here is an error, not a portable file.
function(attn_select_instruction_sets sources)
    if(ATTN_PORTABLE_ONLY)
        set(wanted "")
    elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
        set(wanted ${ATTN_AARCH64_FILES})
    elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|amd64|AMD64)$")
        set(wanted ${ATTN_X86_64_FILES})
    else()
        set(wanted "")
    endif()

    set(selected "")
    foreach(source IN LISTS ${sources})
        get_filename_component(name ${source} NAME)
        if(name IN_LIST wanted)
            # -g1: lines without variables, which in unrolled vector code lie in a megabyte of lists
            set_property(SOURCE ${source} PROPERTY COMPILE_OPTIONS ${ATTN_FLAGS_${name}}
                         $<$<CONFIG:RelWithDebInfo>:-g1>)
        elseif(name STREQUAL "c.c")
            set_property(SOURCE ${source} PROPERTY COMPILE_OPTIONS $<$<CONFIG:RelWithDebInfo>:-g1>)
        elseif(name IN_LIST ATTN_AARCH64_FILES OR name IN_LIST ATTN_X86_64_FILES)
            continue()
        elseif(name MATCHES "^(neon|sve|avx|amx|sse)")
            message(FATAL_ERROR "${source}: give its flags in cmake/instruction_sets.cmake")
        endif()
        list(APPEND selected ${source})
    endforeach()
    set(${sources} ${selected} PARENT_SCOPE)
endfunction()
